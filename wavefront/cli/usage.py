"""What becomes of a command line that cannot be read: a sentence, and where to look."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from wavefront.core.errors import did_you_mean

# typer brings click along under a private name in some versions; the class is the same in all.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def explain_usage(error: Any) -> int:
    """A sentence for a command line that cannot be read, and the exit code that goes with it."""
    from wavefront.cli.output import complain

    sentence: str = error.format_message()
    command: Any = error.ctx.command if error.ctx else None
    if type(error).__name__ == "NoSuchOption":
        # Aliases too: whoever writes one almost right knows it from somewhere.
        known = [name for one in command.params for name in one.opts if name.startswith("--")]
        begun = [name for name in known if name.startswith(error.option_name)]
        hint = did_you_mean(error.option_name, begun or known)
        sentence = f"There is no option {error.option_name}{hint}."
    elif unknown := re.match("No such command '(.*?)'", sentence):
        sentence = (
            f"There is no command {unknown[1]!r}{did_you_mean(unknown[1], command.commands)}."
        )
    elif sentence.startswith("Got unexpected extra arg"):
        sentence += "; put a prompt of several words in quotes."
    complain("error", sentence)
    path = error.ctx.command_path if error.ctx else "wavefront"
    print(f"Try '{path} --help'.", file=sys.stderr)
    return 2
