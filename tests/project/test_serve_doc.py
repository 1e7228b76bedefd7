"""docs/serve.md: the examples run unchanged, and the lists match the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import save_talker
from helpers.servers import PATIENCE, Running, serving

from wavefront.server.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serve.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = save_talker(tmp_path_factory.mktemp("talker"))
    with serving("-m", folder, "--name", "ripple") as running:
        yield running


def curl(server: Running, number: int) -> Any:
    """Run a curl example of the page, and return its JSON."""
    examples = [example for example in blocks("bash") if example.startswith("curl")]
    assert len(examples) == 2
    command = examples[number].replace("http://localhost:8000", server.url)
    made = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return json.loads(made.stdout)


@pytest.mark.slow
def test_chat_example_runs(server: Running) -> None:
    assert curl(server, 0)["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.slow
def test_infill_example_gives_the_text_that_the_page_shows() -> None:
    assert "`wavefront serve -m tale`" in PAGE
    with serving("-m", "tale") as running:
        (choice,) = curl(running, 1)["choices"]
    assert choice["finish_reason"] == "filled"
    assert f'The text of the answer is "{choice["text"]}"' in PAGE


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_python_examples_run(server: Running, number: int) -> None:
    example = blocks("python")[number]
    assert len(blocks("python")) == 2
    code = example.replace("http://localhost:8000", server.url)
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip()


def test_every_metric_is_documented() -> None:
    for family in Metrics().registry.collect():
        assert family.name.removeprefix("wavefront:") in PAGE


def test_pictures_exist_and_are_small() -> None:
    pictures = re.findall(r"!\[.+?\]\((images/.+?)\)", PAGE)
    assert len(pictures) == 3
    for name in pictures:
        assert 0 < (DOCS / name).stat().st_size < 200_000
