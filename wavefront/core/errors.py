"""Every error a user can cause, as a type; each message is one sentence that names the fix.

All are `WavefrontError`, so one `except` at a border (command line, server) catches them, and all
are `ValueError`, because that is what a caller who knows nothing of us would expect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WavefrontError(ValueError):
    """Something the caller can put right."""


class OptionError(WavefrontError):
    """An option is unknown, out of range, or does not go with another."""


class SpecError(OptionError):
    """A spec string such as `wavefront(size=8)` does not parse or names nothing."""


class PromptError(WavefrontError):
    """A prompt is empty, too long, or not of a form we take."""


class CheckpointError(WavefrontError):
    """A checkpoint is missing, damaged, unsafe, or of a shape we do not support."""


class TraceError(WavefrontError):
    """A trace file is damaged, foreign, or lacks what was asked of it."""


class ReportError(WavefrontError):
    """A run directory, or something in it, cannot be shown."""


class RunError(WavefrontError):
    """The directory of an evaluation is foreign, damaged, busy, or of another configuration."""


class NumericalError(WavefrontError):
    """The model produced NaN: decoding stops and says at which step."""


class MissingExtraError(WavefrontError):
    """An optional dependency is needed; the message says what to install."""


class WavefrontWarning(UserWarning):
    """Legal, but probably not what was meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'block'?)"`, or nothing when no known name is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Refuse anything but an integer in [low, high]; True and 8.0 are not integers here."""
    bound = f"at least {low}" if high is None else f"between {low} and {high}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} must be a whole number {bound}, not {value!r}.")
    if value < low or (high is not None and value > high):
        raise OptionError(f"{name} must be {bound}, not {value}.")


def check_float(name: str, value: object, low: float, high: float | None = None) -> None:
    """Refuse anything but a finite number in [low, high]."""
    bound = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"{name} must be a number {bound}, not {value!r}.")
    if not (low <= value < float("inf")) or (high is not None and value > high):
        raise OptionError(f"{name} must be {bound}, not {value!r}.")


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Refuse a word that is not on the list, and say which is nearest."""
    words = list(known)
    if value not in words:
        listed = ", ".join(words)
        raise OptionError(
            f"{name} must be one of {listed}; {value!r} is not{did_you_mean(str(value), words)}."
        )
