"""Running the command line inside the test process, on the toy whatever the default model is."""

from __future__ import annotations

import json
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

# Tiny models on a busy machine are quickest alone.
torch.set_num_threads(1)


def run(*args: str, input: str | bytes | None = None, code: int = 0) -> Result:
    """The result of a command line that must end with `code`."""
    with mock.patch("wavefront.models.builtin.DEFAULT", "toy"):
        result = CliRunner().invoke(app, args, input=input, prog_name="wavefront")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stderr
    return result


def records(result: Result) -> list[dict[str, Any]]:
    """The JSON objects it printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*args: str, code: int = 1, **more: Any) -> str:
    """The one sentence of a refusal."""
    result = run(*args, code=code, **more)
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert rest == (["Try 'wavefront generate --help'."] if code == 2 else [])
    return first


def save_talker(folder: Path) -> str:
    """A random checkpoint with a chat template, saved in a folder; its path."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={byte: n for n, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    added = (*CONTROLS, "<|endoftext|>", "<|mdm_mask|>")
    backend.add_special_tokens([AddedToken(token, special=True) for token in added])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|endoftext|>", "bos_token": "<|startoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = toy(vocab_size=backend.get_vocab_size(), width=16, layers=1, max_length=256)
    wavefront.save_checkpoint(model, folder)
    return str(folder)


def parses(words: list[str]) -> None:
    """The options of a command line are there; nothing is run."""
    group = typer.main.get_command(app)
    _, *rest = words
    context = group.make_context("wavefront", [*rest], resilient_parsing=False)
    _, found, left = group.resolve_command(context, rest)  # pyright: ignore[reportAttributeAccessIssue]
    found.make_context(rest[0], left, parent=context)
