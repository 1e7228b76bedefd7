"""Print the notes of a release: the changelog's section of a version, by default this one.

    python runs/release_notes.py            # a version in development: what is unreleased
    python runs/release_notes.py 0.1.0

A version that is no development version must have a dated section, `## 0.1.0 - 2026-12-31`, that
says something, and nothing may be left under "Unreleased".
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


class NoNotes(Exception):
    """The changelog does not match the version; the message says what to write."""


def sections(text: str) -> dict[str, str]:
    """Return the text below every heading."""
    parts = re.split(r"^## +(.+?) *$", text, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))


def notes(text: str, version: str) -> str:
    """Return the changelog's section of a version."""
    found = sections(text)
    if ".dev" in version:
        if "Unreleased" not in found:
            raise NoNotes("CHANGELOG.md has no section '## Unreleased': write it.")
        return found["Unreleased"] or "Nothing yet."
    dated = rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d"
    heading = next((name for name in found if re.fullmatch(dated, name)), None)
    if heading is None:
        raise NoNotes(f"CHANGELOG.md has no section '## {version} - YYYY-MM-DD': write it.")
    if found.get("Unreleased"):
        raise NoNotes(f"CHANGELOG.md has unreleased changes: move them to {version}.")
    if not found[heading]:
        raise NoNotes(f"CHANGELOG.md says nothing under '## {heading}': write what changed.")
    return found[heading]


def main(arguments: list[str]) -> int:
    import wavefront

    version = arguments[0] if arguments else wavefront.__version__
    try:
        print(f"# wavefront {version}\n\n{notes(CHANGELOG.read_text('utf-8'), version)}")
    except NoNotes as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
