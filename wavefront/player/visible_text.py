"""Make text that a model wrote safe to show: remove control characters and mark invisible ones."""

from __future__ import annotations

import unicodedata

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
BREAK = "⏎"


def printable(text: str) -> str:
    """Remove control characters other than line breaks and tabs."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def visible(piece: str) -> str:
    """Replace every invisible character with a sign; a line break is kept after its sign."""
    shown = ""
    for character in piece:
        code = ord(character)
        if character == "\n":
            shown += BREAK + "\n"
        elif code < 0x20:
            shown += chr(0x2400 + code)  # Unicode's pictures of control characters
        elif code == 0x7F:
            shown += "\N{SYMBOL FOR DELETE}"
        # C1 controls and format characters; some of them reverse the writing direction.
        # XML has no noncharacters, such as U+FFFE.
        elif (
            unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
            or code & 0xFFFE == 0xFFFE
        ):
            shown += UNKNOWN
        else:
            shown += character
    return shown
