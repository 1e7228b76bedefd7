"""Every error that a caller can cause, as a type with a message that names the fix.

All errors are `WavefrontError`, so the command line and the server catch one type. All are
`ValueError` too, which is what a caller who does not know this library expects.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EMPTY_PROMPT = "The prompt is empty: write something in it."


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
    """An evaluation directory is damaged, in use, not ours, or of another configuration."""


class NumericalError(WavefrontError):
    """The model produced NaN logits. Decoding stops; the message names the step."""


class MissingExtraError(WavefrontError):
    """An optional dependency is not installed; the message says how to install it."""


class WavefrontWarning(UserWarning):
    """A legal setting that is probably a mistake."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'block'?)"`, or "" if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise `OptionError` unless `value` is an int in [low, high]. True and 8.0 are not ints."""
    bound = f"at least {low}" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(
            f"{name} must be a whole number {bound}, not {value!r}.", option=name, value=value
        )
    if value < low or (high is not None and value > high):
        raise OptionError(f"{name} must be {bound}, not {value}.", option=name, value=value)


def check_float(name: str, value: object, low: float, high: float | None = None) -> None:
    """Raise `OptionError` unless `value` is a finite number in [low, high]."""
    bound = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(
            f"{name} must be a number {bound}, not {value!r}.", option=name, value=value
        )
    if not (low <= value < float("inf")) or (high is not None and value > high):
        raise OptionError(f"{name} must be {bound}, not {value!r}.", option=name, value=value)


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `OptionError` unless `value` is one of `known`; the message names the closest one."""
    words = list(known)
    if value not in words:
        listed = ", ".join(words)
        raise OptionError(
            f"{name} must be one of {listed}; {value!r} is not{did_you_mean(str(value), words)}.",
            option=name,
            value=value,
        )
