"""The examples run, and the example strategy passes the laws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from helpers.servers import serving

from wavefront.core import spec
from wavefront.testing import check

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "examples" / "serve_client.py"  # needs a server
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {CLIENT})
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def run(example: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"} | more
    return subprocess.run(
        [sys.executable, str(example), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=120,
    )


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_runs(example: Path) -> None:
    if "transformers" in example.stem and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    done = run(example)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.slow
def test_infilling_example_prints_the_text_as_it_forms() -> None:
    *steps, last = run(ROOT / "examples" / "infill.py").stdout.strip().splitlines()
    holes = [line.count("_") for line in steps]
    assert holes == sorted(holes, reverse=True)
    assert holes[0] > holes[-1] == 0
    assert all(line.strip().startswith("Once upon a time there was a") for line in steps)
    assert last.startswith(steps[-1].strip())


@pytest.mark.slow
def test_client_talks_to_a_server() -> None:
    with serving("-m", "ripple", key="a-secret") as server:
        done = run(CLIENT, "--url", server.url, WAVEFRONT_API_KEY="a-secret")
        stranger = run(CLIENT, "--url", server.url, WAVEFRONT_API_KEY="wrong")
    assert done.returncode == 0, done.stderr
    answer, counted = done.stdout.split(" tokens, ended by ")
    assert "####" in answer
    streamed, refused = counted.split("refused: ")
    assert "####" in streamed
    assert refused.startswith("presence_penalty: ")
    assert (stranger.returncode, stranger.stderr.count("\n")) == (1, 1)
    assert "set WAVEFRONT_API_KEY" in stranger.stderr
    gone = run(CLIENT, "--url", server.url)
    assert gone.returncode == 1
    assert gone.stderr == f"There is no server at {server.url}: start one with `wavefront serve`.\n"


@pytest.mark.slow
def test_external_strategy_passes_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    made = spec.resolve("examples.new_strategy.OutsideIn(size=3)", "strategies")
    assert repr(made) == "examples.new_strategy.OutsideIn(size=3)"
    assert "reads_only_candidates" in check(made)


def test_every_feature_has_an_example() -> None:
    names = {path.stem for path in (*EXAMPLES, CLIENT)}
    expected = {
        "serve_client",
        "decode",
        "watch",
        "compare",
        "infill",
        "evaluate",
        "new_strategy",
        "new_task",
        "new_model",
    }
    assert expected <= names
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_has_no_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown"
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_cells_run(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all cells in order in one namespace, without Jupyter."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", module)
    for number, cell in enumerate(json.loads(notebook.read_text("utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec")
            exec(code, module.__dict__)
