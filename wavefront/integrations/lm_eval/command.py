"""lm-eval's own command line, run here with our model known to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from wavefront.core.errors import MissingExtraError, OptionError
from wavefront.integrations.lm_eval.arguments import parse, read

NAME = "wavefront"
TARGET = "wavefront.integrations.lm_eval.adapter:Wavefront"
VERBS = ("run", "ls", "validate")


def register() -> None:
    """Make the model known by its name; a second time changes nothing.

    Newer versions of lm-eval find it by its entry point; 0.4.13 does not look for any.
    """
    if find_spec("lm_eval") is None:
        raise MissingExtraError("This needs lm-eval: pip install 'wavefront[lm-eval]'.")
    import lm_eval.models  # noqa: F401  (fills the registry, which is then known to be whole)
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)


def complete(words: Sequence[str]) -> list[str]:
    """The command line as lm-eval wants it: a verb first, and our model unless another is named."""
    given = list(words)
    if not given or given[0] not in (*VERBS, "-h", "--help"):
        given = ["run", *given]
    # A file of settings names its model itself.
    settled = ("--model", "-M", "--config", "-C", "-h", "--help")
    if given[0] == "run" and not any(one.split("=")[0] in settled for one in given):
        given += ["--model", NAME]
    return given


def check(given: Sequence[str]) -> None:
    """Refuse model arguments that we do not have: lm-eval gets to them after half a minute."""
    asked: dict[str, list[str]] = {}
    words: list[str] = []
    for one in given:
        if one.startswith("-"):
            name, equals, value = one.partition("=")
            words = asked.setdefault(name, [])
            words += [value] if equals else []
        else:
            words.append(one)
    if (asked.get("--model") or asked.get("-M")) == [NAME]:
        parts = asked.get("--model_args", []) + asked.get("-a", [])
        read({name: value for part in parts for name, value in parse(part).items()})


def run(words: Sequence[str]) -> None:
    """Run lm-eval in this process, as if it had been called with these words."""
    register()
    given = complete(words)
    check(given)
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm-eval", *given]
    try:
        cli_evaluate()
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        raise OptionError(f"lm-eval: {error}; is --include_path missing?") from error
    finally:
        sys.argv = before
