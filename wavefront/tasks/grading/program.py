"""Find the program in a model's text.

It handles code fences, prose around the code, and a repeated or missing signature.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass

FENCE = re.compile(r"```[ \t]*(?:[\w+-]+[ \t]*)?\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
STOPS = ("[DONE]", "<|endoftext|>", "<|eot_id|>")
MAX_LINES = 400  # of a program after its stub
MAX_PARSED = 300_000  # characters that are parsed for one answer, in all attempts together


def strict_program(stub: str, entry: str, text: str) -> str:
    """Return the text unchanged, after the stub unless it defines the function itself."""
    return f"{stub}\n{text}" if _defines(text, entry) or not stub else stub + text


def find_program(stub: str, entry: str, text: str) -> str:
    """Return the longest prefix of the likeliest part that is Python and defines `entry`."""
    for stop in STOPS:
        text = text.partition(stop)[0]
    search = _ProgramSearch(entry, len(stub.splitlines()))
    for part in _likely_parts(entry, text):
        for program in _readings(stub, entry, part):
            if (code := search.longest_program(program)) is not None:
                return code
    return strict_program(stub, entry, text)


def _likely_parts(entry: str, text: str) -> list[str]:
    blocks = FENCE.findall(text)
    good = [block for block in blocks if _defines(block, entry)]
    rest = [] if good else blocks[:1]
    # Skip prose before the code: start at the first statement, or at the function.
    starts = (
        r"^(?:import|from|def|class|async|@)\b",
        rf"^[ \t]*(?:async )?def {re.escape(entry)}\b",
    )
    found = [re.search(start, text, re.MULTILINE) for start in starts]
    return [*good, *rest, text, *(text[at.start() :] for at in found if at)]


def _readings(stub: str, entry: str, part: str) -> list[str]:
    """List the ways to read a part as a program, the likeliest first."""
    if _defines(part, entry) or not stub:
        return [f"{stub}\n{textwrap.dedent(part)}", f"{stub}\n{part}"]
    body = part.strip("\n")
    lines = body.split("\n")
    first = "\n".join(["    " + lines[0].lstrip(), *lines[1:]])
    indented = textwrap.indent(textwrap.dedent(body), "    ")
    ways = [first, indented] if body[:1].strip() else [body, indented, first]
    return [f"{stub.rstrip()}\n{way}" for way in ways]


def _defines(text: str, entry: str) -> bool:
    return bool(
        re.search(rf"^[^\S\n]*(?:(?:async )?def|class) {re.escape(entry)}\b", text, re.MULTILINE)
    )


@dataclass
class _ProgramSearch:
    """Looks for Python at the start of a text, and parses a limited number of characters."""

    entry: str
    stub: int  # lines of the stub
    left: int = MAX_PARSED

    def longest_program(self, code: str) -> str | None:
        """Remove lines from the end until the code is Python. None if it lacks the function."""
        lines = code.split("\n")
        if len(lines) - self.stub > MAX_LINES:
            lines = lines[: self.stub + MAX_LINES]
        while len(lines) > self.stub and self.left > 0:
            code = "\n".join(lines)
            self.left -= len(code)
            found = _parse(code)
            if isinstance(found, ast.Module):
                return code if _defines_body(found, self.entry) else None
            # A program that ends after the wrong line, or in the middle of it, has the same error.
            lines = lines[: min(found or len(lines), len(lines)) - 1]
        return None


def _defines_body(tree: ast.Module, entry: str) -> bool:
    """Return whether the function is defined and has more than a docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in reversed(tree.body):
        if isinstance(node, kinds) and node.name == entry:
            return len(node.body) > 1 or not isinstance(node.body[0], ast.Expr)
    return False


def parse_or_none(code: str) -> ast.Module | None:
    """Parse the program. Return None if it is not Python."""
    found = _parse(code)
    return found if isinstance(found, ast.Module) else None


def _parse(code: str) -> ast.Module | int | None:
    """Parse the program. If it is not Python, return the number of the wrong line, if known."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in model-written code
            return ast.parse(code)
    except SyntaxError as error:
        return error.lineno
    except (ValueError, RecursionError, MemoryError):
        return None
