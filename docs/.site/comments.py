"""Comments of fields as their descriptions: `text: str  # up to the first stop token`.

Fields of tuples, dataclasses and dictionaries have no docstrings; the code says what they are in a
comment at the end of the line, and so does the reference.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension

AT_END = re.compile(r"  # (?!pyright|noqa|type:)(.+)$")


class Comments(Extension):
    """Gives an attribute without a docstring the comment at the end of its last line."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        if attr.docstring is not None or attr.endlineno is None:
            return
        found = AT_END.search(attr.lines_collection[attr.filepath][attr.endlineno - 1])  # pyright: ignore[reportArgumentType]
        if found is not None:
            attr.docstring = Docstring(found.group(1), lineno=attr.endlineno, parent=attr)
