"""Run lm-eval's own command line with our model registered."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from wavefront.core.errors import MissingExtraError, OptionError, install_command
from wavefront.integrations.lm_eval.arguments import parse, parse_arguments

NAME = "wavefront"
TARGET = "wavefront.integrations.lm_eval.adapter:WavefrontLM"
VERBS = ("run", "ls", "validate")


def register() -> None:
    """Register the model `wavefront` with lm-eval. You can call this more than once.

    Newer versions of lm-eval find the model by its entry point; 0.4.13 does not.
    """
    if find_spec("lm_eval") is None:
        raise MissingExtraError(f"lm-eval is not installed: {install_command('lm-eval')}.")
    import lm_eval.models  # noqa: F401  (fills the registry)
    from lm_eval.api.registry import model_registry

    if NAME not in model_registry:
        model_registry.register(NAME, target=TARGET)


def complete(words: Sequence[str]) -> list[str]:
    """Add what lm-eval needs: the subcommand, if missing, and our model unless another is named."""
    given = list(words)
    if not given or given[0] not in (*VERBS, "-h", "--help"):
        given = ["run", *given]
    # A config file names its model.
    names_model = ("--model", "-M", "--config", "-C", "-h", "--help")
    if given[0] == "run" and not any(one.split("=")[0] in names_model for one in given):
        given += ["--model", NAME]
    return given


def check(given: Sequence[str]) -> None:
    """Check our model arguments now; lm-eval would check them only after half a minute."""
    options: dict[str, list[str]] = {}
    words: list[str] = []
    for one in given:
        if one.startswith("-"):
            name, equals, value = one.partition("=")
            words = options.setdefault(name, [])
            words += [value] if equals else []
        else:
            words.append(one)
    if (options.get("--model") or options.get("-M")) == [NAME]:
        parts = options.get("--model_args", []) + options.get("-a", [])
        parse_arguments({name: value for part in parts for name, value in parse(part).items()})


def run(words: Sequence[str]) -> None:
    """Run lm-eval in this process with these command-line arguments."""
    register()
    given = complete(words)
    check(given)
    from lm_eval.__main__ import cli_evaluate

    before, sys.argv = sys.argv, ["lm-eval", *given]
    try:
        with _git_errors_hidden():
            cli_evaluate()
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):
            raise
        raise OptionError(f"lm-eval: {error}; is --include_path missing?") from error
    finally:
        sys.argv = before


@contextlib.contextmanager
def _git_errors_hidden() -> Iterator[None]:
    """Do not let lm-eval ask git for a commit in a folder that is in no repository.

    lm-eval would continue without a commit, but git would print an error.
    """
    from lm_eval import evaluator

    name = "get_git_commit_hash"
    if (original := getattr(evaluator, name, None)) is None:
        yield
        return
    setattr(evaluator, name, lambda: original() if _may_be_in_repository() else None)
    try:
        yield
    finally:
        setattr(evaluator, name, original)


def _may_be_in_repository() -> bool:
    """Return False if git says that no folder above the current one is a repository."""
    command = ["git", "rev-parse", "--git-dir"]
    english = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=english)
    except OSError:
        return True  # git is not installed; lm-eval looks for a commit without it
    return "not a git repository (or any" not in done.stderr
