"""Run the command line inside the test process, with the toy as the default model."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import typer
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from typer.testing import CliRunner, Result

import wavefront
from wavefront.cli.app import app
from wavefront.models.toy import toy

CONTROLS = ("<|startoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

# Tiny models are fastest with one thread.
torch.set_num_threads(1)


def run(*args: str, input: str | bytes | None = None, code: int | None = 0) -> Result:
    """Run a command line and check its exit status; None accepts any."""
    with mock.patch("wavefront.models.builtin.DEFAULT", "toy"):
        result = CliRunner().invoke(app, args, input=input, prog_name="wavefront")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert code in (None, result.exit_code), result.stderr
    return result


def records(result: Result) -> list[dict[str, Any]]:
    """Return the JSON objects that a command printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*args: str, code: int = 1, **more: Any) -> str:
    """Run a command line that fails, and return its error message."""
    result = run(*args, code=code, **more)
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert len(rest) == (code == 2)
    assert all(re.fullmatch(r"Try 'wavefront [a-z -]+ --help'\.", line) for line in rest)
    return first


def save_talker(folder: Path, *, max_length: int = 256) -> str:
    """Save a random checkpoint with a chat template, and return its path."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={byte: n for n, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    added = (*CONTROLS, "<|endoftext|>", "<|mdm_mask|>")
    backend.add_special_tokens([AddedToken(token, special=True) for token in added])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>", "bos_token": "<|startoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = toy(vocab_size=backend.get_vocab_size(), width=16, layers=1, max_length=max_length)
    wavefront.save_checkpoint(model, folder)
    return str(folder)


@functools.cache
def find_command(*names: str) -> Any:
    """Return the command of these names, such as "trace", "show", with its module loaded."""
    command: Any = typer.main.get_command(app)
    for name in names:
        context = command.make_context("wavefront", [name], resilient_parsing=True)
        _, command, _ = command.resolve_command(context, [name])
    return command


def all_commands(*names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the names of every command and group, and the command itself."""
    command = find_command(*names)
    yield names, command
    for name in getattr(command, "commands", ()):
        yield from all_commands(*names, name)


def parses(words: list[str]) -> None:
    """Check that a command line parses, without running it."""
    command: Any = typer.main.get_command(app)
    program, *rest = words
    context = command.make_context(program, [*rest])
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, [*rest], parent=context)
