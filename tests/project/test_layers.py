"""The modules stand in one line; each imports only what comes before it."""

from __future__ import annotations

import ast
from pathlib import Path

import wavefront

ROOT = Path(wavefront.__file__).parent
# fmt: off
ORDER = [
    "errors", "raystart", "source", "kernels", "few", "fuse",
    "masks", "canvas", "noise", "quota", "spec",
    "strategy", "selectors", "strategies", "stats", "rows", "cache", "caches",
    "files", "checkpoint", "model", "models",
    "engine", "speculate", "graph", "window", "cached", "narrow",
    "trace", "tracefile", "measures", "figures",
    "chat", "text", "options", "builtin", "seats", "shared", "slots", "stepper", "decoding",
    "completion", "rerun", "fork", "lm", "hf",
    "testing", "sandbox", "grading", "task", "tasks", "corrupt", "train",
    "watch", "report", "studies", "evaluate", "harness", "bench", "experiments", "tune", "serve",
    "cli", "__main__",
]
# fmt: on
# The only third-party imports outside torch and the standard library, and where they may stand.
THIRD_PARTY = {
    "safetensors": {"checkpoint", "train"},
    "tokenizers": {"text", "builtin", "train", "hf"},
    "jinja2": {"chat"},
    "typer": {"cli"},
    "rich": {"cli", "watch"},
    "click": {"cli"},
    "triton": {"kernels"},
    "huggingface_hub": {"files", "tasks"},
    "pyarrow": {"tasks"},
    "math_verify": {"grading"},
    "numpy": {"train", "tracefile", "figures", "report"},
    "matplotlib": {"figures"},
    "lm_eval": {"harness"},
    "tqdm": {"harness"},
    "transformers": {"harness", "hf"},
    "ray": {"raystart", "serve"},
    "fastapi": {"serve"},
    "starlette": {"serve"},
    "pydantic": {"serve"},
    "pydantic_core": {"serve"},
    "uvicorn": {"serve"},
    "prometheus_client": {"serve"},
}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            yield path, parts[0]


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "wavefront":
                yield from (f"wavefront.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_every_module_has_its_place():
    assert {name for _, name in modules()} <= set(ORDER)


def test_modules_import_only_what_comes_before_them():
    wrong = []
    for path, name in modules():
        for target in imports(path):
            if not target.startswith("wavefront."):
                continue
            other = target.split(".")[1]
            if other in ORDER and ORDER.index(other) > ORDER.index(name):
                wrong.append(f"{path.relative_to(ROOT)} imports {target}")
    assert wrong == []


def test_shelves_do_not_import_one_another_s_files_by_name():
    """Only the default take, and what a family is made of, may be named."""
    for path, name in modules():
        if name in ("engine", "speculate", "rows", "stats", "decoding", "options", "trace"):
            named = [t for t in imports(path) if t.startswith(("wavefront.sch", "wavefront.mod"))]
            assert all(
                t in ("wavefront.core.strategy", "wavefront.models.loader") for t in named
            ), path


def test_third_parties_stay_in_their_files():
    standard = set(__import__("sys").stdlib_module_names) | {"torch", "wavefront"}
    wrong = []
    for path, name in modules():
        for target in imports(path):
            package = target.split(".")[0]
            if package not in standard and name not in THIRD_PARTY.get(package, set()):
                wrong.append(f"{path.relative_to(ROOT)} imports {target}")
    assert wrong == []


def test_files_are_short():
    for path, _ in modules():
        lines = len(path.read_text().splitlines())
        assert lines <= 320, f"{path.relative_to(ROOT)} has {lines} lines"


def test_public_names_are_the_same_for_people_and_for_type_checkers():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname for node in checked.body for alias in node.names}  # pyright: ignore[reportAttributeAccessIssue]
    assert typed == set(wavefront.__all__) - {"__version__"}
    assert all(getattr(wavefront, name) is not None for name in wavefront.__all__)
