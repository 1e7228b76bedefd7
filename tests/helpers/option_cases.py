"""Option values to try, generated from the registries: every option with every odd value."""

from __future__ import annotations

import dataclasses
import json
import signal
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wavefront import Options
from wavefront.core import spec
from wavefront.core.bounds import ALIASES, DECODE_OPTIONS, Bounds, TupleBounds, bounds_of
from wavefront.core.errors import WavefrontError
from wavefront.strategies.selectors.threshold import Threshold

LONGEST_MESSAGE = 700  # characters of an error
SECONDS = 20  # per case; a case takes milliseconds
LITERALS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 2**30, 2**30 + 1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 10**31, 10**400),
    *(-(2**31), -(2**63), -(10**400), 0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 1e-9, 1e9, 1e300, -1e300),
    *(True, False, None, "", "x", "quota", "nan", "x" * 900, "\n", "\x00", b"8", 1j),
    *((), (1,), (-1,), (2**63,), (10**400,), (1e300,), (0.5,), ((1, 2), 3), (1,) * 100, ("",)),
    *(("x" * 900,), (None,), [], [1], {}, {1: 2}, {3}),
)
OBJECTS: tuple[Any, ...] = (
    *(float("nan"), float("inf"), -float("inf"), 10**5000, "x" * 100_000, object(), print),
    *((float("nan"),), (10**5000,), range(9), (1,) * 100_000, {"a": [1] * 1000}, Threshold),
)
WORDS = ("nan", "inf", "quota()", "threshold(tau=2)", "block()", "a.b.C()", "wave", "9" * 990)
WORDS += ("1e999", "-1e999", "--1", "(1e999,)", "[x for x in ()]", "2**64", "selector", "lambda: 0")


class SpecCase(NamedTuple):
    """One option of one class of a registry, with a value."""

    registry: str
    name: str
    option: str
    value: Any
    context: dict[str, Any]  # other options, which are valid

    def build(self) -> Any:
        """Create the object as a Python program would."""
        cls = spec.find(self.name, self.registry)
        return cls(**{**self.context, self.option: self.value})

    def text(self) -> str:
        """Return the spec string, as a user would type it."""
        others = "".join(f", {name}={value!r}" for name, value in self.context.items())
        return f"{self.name}({self.option}={self.value!r}{others})"


def _around(bounds: Bounds | None) -> tuple[Any, ...]:
    """Return the bounds of an option, and the values just outside."""
    if bounds is None:
        return ()
    if isinstance(bounds, TupleBounds):
        edges = tuple((value,) for value in _around(bounds.each))
        return (*edges, (bounds.each.low,) * bounds.max_items, ("x" * (bounds.max_text + 1),))
    gap = 1 if isinstance(bounds.high, int) else 1e-6
    return (bounds.low, bounds.low - gap, bounds.high, bounds.high + gap)


def spec_cases(values: tuple[Any, ...] = LITERALS) -> Iterator[SpecCase]:
    """Yield every option of every class of every registry with every value."""
    for registry in spec.REGISTRIES:
        for name in spec.names(registry):
            cls = spec.find(name, registry)
            options, bounds = [field.name for field in dataclasses.fields(cls)], bounds_of(cls)
            for option in options:
                for value in (*values, *_around(bounds.get(option))):
                    yield SpecCase(registry, name, option, value, {})
                    if "selector" in options and option != "selector":
                        adaptive = {"selector": Threshold(0.5)}  # some options need it
                        yield SpecCase(registry, name, option, value, adaptive)


def spec_texts() -> Iterator[tuple[str, str]]:
    """Yield (registry, spec string): the literal values, and words that are no values."""
    for case in spec_cases():
        yield case.registry, case.text()
    for registry in spec.REGISTRIES:
        for name in spec.names(registry):
            fields = dataclasses.fields(spec.find(name, registry))
            for option in [*(field.name for field in fields), "", "no_such_option"]:
                for word in WORDS:
                    yield registry, f"{name}({option}={word})"
            for word in WORDS:
                yield registry, f"{name}({word})"
                yield registry, f"{name}.{word}"


def option_cases(values: tuple[Any, ...] = (*LITERALS, *OBJECTS)) -> Iterator[dict[str, Any]]:
    """Yield the options of a decode: every option with every value."""
    for name in typing.get_type_hints(Options):
        needed = {"alg": "entropy"} if name in ("eps", "alg_temp") else {}
        for value in (*values, *_around(DECODE_OPTIONS.get(ALIASES.get(name, name)))):
            yield {**needed, name: value}


def as_strategy(registry: str, chosen: Any) -> dict[str, Any]:
    """Return the decode options that use an object or a spec string of a registry."""
    if registry == "caches":
        return {"cache": chosen}
    if registry == "strategies":
        return {"strategy": chosen}
    if isinstance(chosen, str):
        return {"strategy": f"block(size=3, selector={chosen})"}
    return {"strategy": spec.find("block", "strategies")(size=3, selector=chosen)}


def json_values(*more: Any) -> list[Any]:
    """Return the odd values that a JSON text can hold, each once."""
    found = {}
    for value in (*LITERALS, *more):
        try:
            found[json.dumps(value)] = value
        except (TypeError, ValueError):
            continue
    return [json.loads(text) for text in found]


def check_sentence(error: WavefrontError, *, longest: int = LONGEST_MESSAGE) -> None:
    """Check that an error is a message for a person."""
    message = str(error)
    assert 0 < len(message) <= longest
    assert "Traceback" not in message


def is_accepted(
    action: Callable[[], object], shown: str, *, longest: int = LONGEST_MESSAGE
) -> bool:
    """Run an action in time; return False if it is refused with a sentence.

    Args:
        action: What to try.
        shown: What the failure of the test says about any other error.
        longest: Characters of the longest sentence.
    """
    try:
        with time_limit():
            action()
        return True
    except WavefrontError as error:
        check_sentence(error, longest=longest)
        return False
    except Exception as error:
        raise AssertionError(f"{shown}: {error!r}") from error


@contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise TimeoutError if the block takes longer."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
