"""A function takes at most three positional arguments; all others are keyword-only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import wavefront

ROOT = Path(wavefront.__file__).parent
LIMIT = 3

# Decorators that fix a signature, and the reason.
DECORATORS = {
    "triton.jit": "Triton passes arguments by position, as the kernel's launch lists them.",
    "torch.library.custom_op": "The signature is the schema of a PyTorch operator.",
    "register_fake": "The signature repeats that of the operator.",
}
# Functions whose signature is not ours to choose, and the reason.
EXCEPTIONS = {
    "bench/memory.py: TensorWatch.__torch_dispatch__": "PyTorch calls it.",
    "integrations/hf/generation.py: DiffusionGenerationMixin.generate": "transformers' signature.",
    "integrations/hf/modeling.py: DiffusionModel.forward": "transformers' signature.",
    "train/command.py: HelpFormatter.add_usage": "The signature of argparse.",
    "tasks/procedural/_code_ops.py: op": "Each call is one row of a table of operations.",
}


def long_signatures(root: Path) -> Iterator[str]:
    """Yield every function with too many positional parameters, as `file: name`."""
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, function in functions(tree, ()):
            fixed = any(decorator_name(node) in DECORATORS for node in function.decorator_list)
            if positional_count(function) > LIMIT and not fixed:
                yield f"{path.relative_to(root)}: {name}"


def functions(
    node: ast.AST, outer: tuple[str, ...]
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions below a node, nested ones too, by their qualified names."""
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = (*outer, child.name)
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ".".join(name), child
        yield from functions(child, name)


def positional_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters that a caller may pass by position, without `self` and `cls`."""
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def decorator_name(node: ast.expr) -> str:
    """Return the dotted name of a decorator, or its last part if it belongs to an object."""
    text = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return text if text in DECORATORS else text.rsplit(".", 1)[-1]


def test_functions_take_at_most_three_positional_arguments() -> None:
    assert sorted(long_signatures(ROOT)) == sorted(EXCEPTIONS)


def test_a_planted_long_signature_is_reported(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text(
        "def short(a, b, c, *, d): ...\n"
        "def long(a, b, c, d=1): ...\n"
        "class A:\n"
        "    def short(self, a, b, c): ...\n"
        "    async def long(self, a, b, /, c, d):\n"
        "        def inner(a, b, c, d): ...\n"
        "@triton.jit\n"
        "def kernel(a, b, c, d): ...\n"
        "@op.register_fake\n"
        "def _(a, b, c, d): ...\n"
    )
    assert list(long_signatures(tmp_path)) == [
        "core/a.py: long",
        "core/a.py: A.long",
        "core/a.py: A.long.inner",
    ]
