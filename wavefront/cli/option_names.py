"""Error messages with options as the command line spells them, such as --max-new-tokens.

The library names options as Python does, such as max_new_tokens. `Command` passes every error of
the library through `with_option_names` before it is printed.
"""

from __future__ import annotations

import re
from typing import Any

from wavefront.cli.options import LIBRARY_NAMES
from wavefront.core.bounds import ALIASES

# A command that parses its own arguments stores its names here, in the `meta` of its context.
OPTION_NAMES = "wavefront.option_names"
# Text that is not about an option of the command: quotations, and specs such as block(size=8).
VERBATIM = re.compile(r"""(?<!\w)'[^']*'|"[^"]*"|`[^`]*`|\w+\((?:[^()]|\([^()]*\))*\)""")
# The name of an option, perhaps with a value, and perhaps followed by its spelling.
NAME = re.compile(
    r"(?<![\w./-])([a-z]\w*)(=True\b|=|(?![\w/(-]|\.\w))"
    r"(?: \((--[\w-]+)\)|, (--[\w-]+))?"
)
# Words at the start of a message: "steps must be", "regex and choices cannot be".
SUBJECT = re.compile(
    r"(?:\w+(?:, | and | \+ ))*\w+"
    r"(?= (?:must|cannot|needs?|does|has|have|belongs?|names|set|is given)\b)"
)


def with_option_names(message: str, context: Any) -> str:
    """Return a message with the options of the running command as the command line spells them.

    An option is recognised by an underscore, by an equals sign after it, or at the start of the
    message. Other words, such as "more steps", may have their usual meaning.
    """
    names = option_names(context)
    subject = SUBJECT.match(message)
    end = subject.end() if subject else 0

    def spell(found: re.Match[str]) -> str:
        name, equals, *asides = found.groups()
        option = names.get(name)
        if option is None or not (found.start() + offset < end or "_" in name or equals):
            return found[0]
        if option in asides:
            return option
        after = found.end(2) + offset
        has_value = equals == "=" and re.match(r"[^\s,;:.)]", message[after:])
        return option + ("=" if has_value else "") + found[0][len(name + equals) :]

    parts, offset = [], 0
    for quoted in [*VERBATIM.finditer(message), None]:
        until = quoted.start() if quoted else len(message)
        parts.append(NAME.sub(spell, message[offset:until]) + (quoted[0] if quoted else ""))
        offset = quoted.end() if quoted else until
    return "".join(parts)


def option_names(context: Any) -> dict[str, str]:
    """Return how the running command spells each option of the library.

    If an option has several spellings, such as --max-new-tokens and --gen-length, it is the one
    that the user wrote, or the one on the help page.
    """
    best: dict[str, tuple[tuple[bool, ...], str]] = {}
    for one in context.command.params:
        own: str = one.name
        spellings = [option for option in one.opts if option.startswith("--")]
        if not spellings:
            continue
        library = LIBRARY_NAMES.get(own, own)
        if one.hidden:  # --block-size is an option of the model, not an alias
            library = ALIASES.get(library, library)
        source = context.get_parameter_source(own)
        given = source is not None and source.name == "COMMANDLINE"
        for name in (own, library):
            rank = (given, given and name == own, not one.hidden, name == own)
            best[name] = max(best.get(name, ((), "")), (rank, spellings[0]))
    return {name: option for name, (_, option) in best.items()} | context.meta.get(OPTION_NAMES, {})
