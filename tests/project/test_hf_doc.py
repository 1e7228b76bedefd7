"""The blocks of docs/transformers.md run in order as one program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_page_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    page = (ROOT / "docs" / "transformers.md").read_text()
    blocks = re.findall("```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/transformers.md", "exec"), names)
    output = capsys.readouterr().out
    assert "####" in output
    assert "num_beams" in output
    assert "\N{LIGHT SHADE}" not in output  # placeholders are for terminals
    assert "\x1b" not in output
