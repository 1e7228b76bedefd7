"""Errors name options as the command line spells them."""

from __future__ import annotations

import pytest
from helpers.commands import find_command, refused

from wavefront.cli.option_names import with_option_names
from wavefront.core.bounds import DECODE_OPTIONS

CONTEXT = find_command("generate").make_context("generate", ["x", "--gen-length", "8"])


@pytest.mark.parametrize("name", sorted(DECODE_OPTIONS))
def test_every_number_out_of_bounds_names_its_option(name: str) -> None:
    spelled = {"stop_ids": "stop-id", "logit_bias": "logit-bias"}
    option = "--" + spelled.get(name, name.replace("_", "-"))
    value = "-5=1" if name == "logit_bias" else "-5"
    alg = ("--alg", "origin") if name in ("eps", "alg_temp") else ()
    assert refused("generate", "x", *alg, f"{option}={value}").startswith(f"error: {option} ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-n", "0"), "--max-new-tokens must be between"),
        (("--gen-length", "0"), "--gen-length must be between"),
        (("--max-tokens", "4", "-n", "5"), "--max-new-tokens is given twice, once as --max-tokens"),
        (("--stop-id", "1", "--stop-ids", "2"), "--stop-id is given twice, once as --stop-ids."),
        (("--choice", "a", "--regex", "b"), "--regex and --choice cannot be combined"),
        (("--choice", "a" * 9, "-n", "4"), "increase --max-new-tokens."),
        (("--eps", "0.1"), "--eps belongs to Dream's sampler: give --alg as well."),
        (("-n", "4", "-t", "1", "-s", "block(size=2)"), "--steps=1 is fewer than the 2 blocks of"),
        (("-s", "wavefront(radius=0)"), "wavefront: radius must be between"),
        (("--priority", "order_noise"), "; 'order_noise' is not"),
    ],
)
def test_errors_spell_options_as_they_are_typed(args: tuple[str, ...], words: str) -> None:
    assert words in refused("generate", "x", *args)


def test_every_command_spells_its_options() -> None:
    for *command, option in (
        ("eval", "run", "--task", "gsm", "--out", "x", "--items"),
        ("demo", "--items-seed"),
        ("lm-eval", "tasks", "gsm", "--out", "x", "--max-new-tokens"),
        ("train", "tokenizer", "--out", "x", "--size"),
        ("serve", "--max-length"),
        ("serve", "--max-steps"),
        ("serve", "--steps"),
        ("serve", "--max-connections-per-address"),
    ):
        assert refused(*command, f"{option}=-5").startswith(f"error: {option} must be")


@pytest.mark.parametrize(
    ("message", "spelled"),
    [
        ("Pass stop_ids=, or eos.", "Pass --stop-id, or eos."),
        ("eos='stop' needs a stop id.", "--eos='stop' needs a stop id."),
        ("Use fixed_budget=True.", "Use --fixed-budget."),
        ("Use fixed_budget=True (--fixed-budget).", "Use --fixed-budget."),
        ("Set seed=, --seed or $SEED.", "Set --seed or $SEED."),
        ("steps and top_k cannot be used: take fewer steps.",
         "--steps and --top-k cannot be used: take fewer steps."),
        ("The file /a/top_k/top_p.json cannot be read.",
         "The file /a/top_k/top_p.json cannot be read."),
        ("The model's 'top_k, x' is not `--a top_k` or f(top_k=1, g(top_p=2)).",
         "The model's 'top_k, x' is not `--a top_k` or f(top_k=1, g(top_p=2))."),
        ("Reduce max_new_tokens.", "Reduce --gen-length."),
    ],
)  # fmt: skip
def test_only_names_of_options_change(message: str, spelled: str) -> None:
    assert with_option_names(message, CONTEXT) == spelled
