"""Every error that a caller can cause, as a type with a message that names the fix.

All errors are `WavefrontError`, so the command line and the server catch one type. All are also
`ValueError`, which callers expect for invalid arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

LARGEST_INT = (1 << 63) - 1  # what a tensor of integers can hold
LARGEST_FLOAT = 3.4e38  # what a float32 can hold
EMPTY_PROMPT = "The prompt is empty: write a prompt."


class WavefrontError(ValueError):
    """An error that the caller can fix.

    Args:
        message: One or two sentences that say what is wrong and how to fix it.
        option: The name of the option at fault, such as "radius", if there is one.
        value: The value that was given for the option.
        hint: Further advice, such as the command to run.
    """

    def __init__(
        self,
        message: str = "",
        *,
        option: str | None = None,
        value: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.option = option
        self.value = value
        self.hint = hint


class OptionError(WavefrontError):
    """An option is unknown, out of range, or conflicts with another option."""


class SpecError(OptionError):
    """A spec string such as `wavefront(size=8)` does not parse or names nothing known."""


class PromptError(WavefrontError):
    """A prompt is empty, too long, or in a form that is not supported."""


class CheckpointError(WavefrontError):
    """A checkpoint is missing, damaged, unsafe, or of an unsupported architecture."""


class TraceError(WavefrontError):
    """A trace file is damaged, has another format, or lacks the requested data."""


class ReportError(WavefrontError):
    """A run directory, or a file in it, cannot be shown."""


class RunError(WavefrontError):
    """A run directory is damaged, in use, not a run, or has another configuration."""


class NumericalError(WavefrontError):
    """The model produced NaN logits. Decoding stops; the message names the step."""


class StrategyError(WavefrontError):
    """A strategy breaks its contract, for example by making no progress; the message names it."""


class MissingExtraError(WavefrontError):
    """An optional dependency is not installed; the message says how to install it."""


class WavefrontWarning(UserWarning):
    """A legal setting that is probably a mistake."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'block'?)"`, or "" if no known name is close."""
    close = difflib.get_close_matches(name[:64], list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def install_command(extra: str) -> str:
    """Return the command that installs an extra: in a checkout, or of an installed package."""
    checkout = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    return f"pip install -e '.[{extra}]'" if checkout else f"pip install 'wavefront[{extra}]'"


def quote(value: object, limit: int = 80) -> str:
    """Return a value as Python writes it, cut to `limit` characters, for use in a message."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print an integer of thousands of digits
        text = "a very long number"
    except RecursionError:
        text = "a value that is nested too deeply"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def check_int(name: str, value: object, low: int, *, high: int | None = None) -> None:
    """Raise `OptionError` unless `value` is an int in [low, high]. True and 8.0 are not ints.

    Without `high`, the largest integer of a tensor is the limit.
    """
    largest = LARGEST_INT if high is None else high
    bound = f"between {low} and {largest}"
    if high is None and not (isinstance(value, int) and value > largest):
        bound = f"at least {low}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(
            f"{name} must be a whole number {bound}, not {quote(value)}.",
            option=name,
            value=value,
        )
    if not low <= value <= largest:
        raise OptionError(f"{name} must be {bound}, not {quote(value)}.", option=name, value=value)


def check_float(name: str, value: object, low: float, *, high: float | None = None) -> None:
    """Raise `OptionError` unless `value` is a finite number in [low, high].

    Without `high`, the largest float32 is the limit.
    """
    largest = LARGEST_FLOAT if high is None else high
    bound = f"between {low:.10g} and {largest:.10g}"
    if high is None and not (isinstance(value, int | float) and value > largest):
        bound = f"at least {low:.10g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(
            f"{name} must be a number {bound}, not {quote(value)}.", option=name, value=value
        )
    if not low <= value <= largest:
        raise OptionError(f"{name} must be {bound}, not {quote(value)}.", option=name, value=value)


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `OptionError` unless `value` is one of `known`; the message names the closest one."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        listed = ", ".join(words)
        hint = did_you_mean(value, words) if isinstance(value, str) else ""
        raise OptionError(
            f"{name} must be one of {listed}; {quote(value)} is not{hint}.",
            option=name,
            value=value,
        )
