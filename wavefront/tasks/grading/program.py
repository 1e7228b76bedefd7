"""The program in what a model wrote: fences, prose around it, a signature repeated or left out."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings

FENCE = re.compile(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
STOPS = ("[DONE]", "<|endoftext|>", "<|eot_id|>")
MOST_LINES = 400  # that are tried one by one


def plain(stub: str, entry: str, text: str) -> str:
    """Strict: the text as it stands, under the stub unless it has the function itself."""
    return f"{stub}\n{text}" if _defines(text, entry) or not stub else stub + text


def found(stub: str, entry: str, text: str) -> str:
    """Flexible: the longest beginning that is Python and defines `entry`, of the likeliest part."""
    for stop in STOPS:
        text = text.partition(stop)[0]
    for part in _parts(entry, text):
        for whole in _wholes(stub, entry, part):
            if (code := _longest(whole, entry, len(stub.splitlines()))) is not None:
                return code
    return plain(stub, entry, text)


def _parts(entry: str, text: str) -> list[str]:
    blocks = FENCE.findall(text)
    good = [block for block in blocks if _defines(block, entry)]
    rest = [] if good else blocks[:1]
    # Prose before the code: begin where the first statement does, or else at the function.
    starts = (
        r"^(?:import|from|def|class|async|@)\b",
        rf"^[ \t]*(?:async )?def {re.escape(entry)}\b",
    )
    found = [re.search(start, text, re.MULTILINE) for start in starts]
    return [*good, *rest, text, *(text[at.start() :] for at in found if at)]


def _wholes(stub: str, entry: str, part: str) -> list[str]:
    """Ways to read a part as a program, the likeliest first."""
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
        re.search(rf"^\s*(?:(?:async )?def|class) {re.escape(entry)}\b", text, re.MULTILINE)
    )


def _longest(code: str, entry: str, stub: int) -> str | None:
    """The code without as many last lines as keep it from being Python."""
    lines = code.split("\n")
    if len(lines) - stub > MOST_LINES:
        lines = lines[: stub + MOST_LINES]
    while len(lines) > stub:
        tree = parsed("\n".join(lines))
        if tree is not None:
            return "\n".join(lines) if _has(tree, entry) else None
        lines.pop()
    return None


def _has(tree: ast.Module, entry: str) -> bool:
    """Whether the function is there and does more than its docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in reversed(tree.body):
        if isinstance(node, kinds) and node.name == entry:
            return len(node.body) > 1 or not isinstance(node.body[0], ast.Expr)
    return False


def parsed(code: str) -> ast.Module | None:
    """The program's tree, or None where it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape is the model's business
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
