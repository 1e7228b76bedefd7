"""Each room imports only the rooms that the table allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import wavefront

ROOT = Path(wavefront.__file__).parent

# What each room may import besides itself. `lm` is `lm.py` and `completion.py`.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "storage": {"core"},
    "kernels": {"core"},
    "strategies": {"core"},
    "results": {"core", "storage"},
    "text": {"core", "storage"},
    "models": {"core", "storage", "kernels", "text"},
    "traces": {"core", "storage"},
    "engine": {"core", "storage", "kernels", "strategies", "text", "models", "traces"},
    "lm": {"core", "storage", "kernels", "strategies", "text", "models", "traces", "engine"},
    "tasks": {"core", "storage"},
    "analysis": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
    },
    "evaluation": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks", "analysis",
    },
    "paper": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks", "analysis", "evaluation",
    },
    "player": {"core", "storage", "text", "traces"},
    "viewer": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "analysis", "player",
    },
    "server": {
        "core", "storage", "kernels", "strategies", "text", "models", "traces", "engine", "lm",
        "player",
    },
    "integrations": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks", "analysis", "evaluation",
    },
    "train": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks",
    },
    "bench": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks",
    },
    "testing": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks",
    },
    "cli": {
        "core", "storage", "kernels", "strategies", "results", "text", "models", "traces", "engine",
        "lm", "tasks", "analysis", "evaluation", "paper", "player", "viewer", "server",
        "integrations", "train", "bench", "testing",
    },
}  # fmt: skip
# Modules of rooms that a room may not import. They are imported by name at their first use.
LAZY = {
    ("core.spec", "wavefront.strategies"),  # the registries of specs
    ("core.spec", "wavefront.strategies.selectors"),
    ("core.spec", "wavefront.strategies.caches"),
    ("traces.trace", "wavefront.player.notebook:trace_html"),  # a trace in a notebook
}
TOP_LEVEL = {"lm": "lm", "completion": "lm", "__main__": "cli"}

# Third-party packages other than torch, and the rooms that may import them.
THIRD_PARTY = {
    "safetensors": {"storage", "train"},
    "tokenizers": {"text", "models", "train", "integrations"},
    "jinja2": {"text"},
    "outlines_core": {"text"},
    "typer": {"cli"},
    "rich": {"cli", "viewer"},
    "click": {"cli"},
    "triton": {"kernels"},
    "huggingface_hub": {"storage", "tasks"},
    "pyarrow": {"tasks"},
    "math_verify": {"tasks"},
    "numpy": {"train", "traces", "analysis", "player"},
    "matplotlib": {"analysis"},
    "lm_eval": {"integrations"},
    "tqdm": {"integrations"},
    "transformers": {"analysis", "integrations"},
    "ray": {"storage", "server"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "pydantic": {"server"},
    "pydantic_core": {"server"},
    "h11": {"server"},
    "uvicorn": {"server"},
    "prometheus_client": {"server"},
}


def room_of(module: str) -> str:
    """Return the room of a dotted module name below `wavefront`."""
    first = module.split(".")[0]
    return TOP_LEVEL.get(first, first)


def modules(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield every module with its dotted name below the package."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            yield path, name


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return the imports and the constants of a file. Several tests read every file."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def imports(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, in functions too, by its full name."""
    for node in nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import"
            if node.module.split(".")[0] == "wavefront":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def violations(root: Path) -> list[str]:
    """Return every import that the table forbids, as readable lines."""
    known = {name for _, name in modules(root)}
    found = []
    for path, name in modules(root):
        room = room_of(name)
        for target in imports(path):
            parts = target.split(".")
            if parts[0] != "wavefront" or len(parts) == 1:
                continue
            other = room_of(parts[1])
            if other not in ALLOWED:  # a public name or `__version__` of the package itself
                continue
            if other != room and other not in ALLOWED.get(room, set()):
                found.append(f"{path.relative_to(root)}: {room} may not import {target}")
            private = [part for part in parts[2:] if part.startswith("_")]
            is_module = ".".join(parts[1:]) in known or ".".join(parts[1:-1]) in known
            if other != room and private and is_module:
                found.append(f"{path.relative_to(root)}: {target} is private to {other}")
    return found


def test_every_module_is_in_a_room() -> None:
    assert {room_of(name) for _, name in modules(ROOT)} <= set(ALLOWED)


def test_rooms_import_only_what_the_table_allows() -> None:
    assert violations(ROOT) == []


def test_the_table_has_no_cycles() -> None:
    for room, seen in ALLOWED.items():
        for other in seen:
            assert room not in ALLOWED[other], f"{room} and {other} see each other"
            assert ALLOWED[other] <= seen | {other}, f"{room} sees {other} but not all it sees"


def lazy_imports(root: Path) -> set[tuple[str, str]]:
    """Return every (module, name) where a text names a module of a room that is not visible."""
    known = {name for _, name in modules(root)}
    found = set()
    for path, name in modules(root):
        for node in nodes(path.read_text(encoding="utf-8")):
            text = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(text, str) or not text.startswith("wavefront."):
                continue
            target = text.removeprefix("wavefront.").partition(":")[0]
            other = room_of(target)
            room = room_of(name)
            if target in known and other != room and other not in ALLOWED.get(room, set()):
                found.add((name, text))
    return found


def test_only_the_listed_hooks_name_a_module_of_a_higher_room() -> None:
    assert lazy_imports(ROOT) == LAZY


def test_a_planted_lazy_import_is_reported(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "viewer").mkdir()
    (tmp_path / "viewer" / "screen.py").write_text("")
    (tmp_path / "core" / "a.py").write_text('import_module("wavefront.viewer.screen")\n')
    assert lazy_imports(tmp_path) == {("core.a", "wavefront.viewer.screen")}


def test_a_planted_upward_import_is_reported(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "_hidden.py").write_text("")
    (tmp_path / "core" / "a.py").write_text("from wavefront.engine.step import advance\n")
    (tmp_path / "lm.py").write_text("def f():\n    from wavefront.engine import _hidden\n")
    assert violations(tmp_path) == [
        "core/a.py: core may not import wavefront.engine.step.advance",
        "lm.py: wavefront.engine._hidden is private to engine",
    ]


def test_every_room_documents_its_contents_and_imports() -> None:
    for room in ALLOWED:
        if room != "lm":
            text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
            text = " ".join(text.split())
            assert "import" in text, f"{room}/__init__.py does not say what the room imports"
            assert "Start reading" in text, f"{room}/__init__.py does not say where to start"


def test_third_party_packages_stay_in_their_rooms() -> None:
    standard = set(__import__("sys").stdlib_module_names) | {"torch", "wavefront"}
    wrong = []
    for path, name in modules(ROOT):
        for target in imports(path):
            package = target.split(".")[0]
            if package not in standard and room_of(name) not in THIRD_PARTY.get(package, set()):
                wrong.append(f"{path.relative_to(ROOT)} imports {target}")
    assert wrong == []


def test_public_names_are_the_same_for_people_and_for_type_checkers() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname for node in checked.body for alias in node.names}  # pyright: ignore[reportAttributeAccessIssue]
    assert typed == set(wavefront.__all__) - {"__version__"}
    assert all(getattr(wavefront, name) is not None for name in wavefront.__all__)
