"""`runs/draw_numbers.py`: numbers of the pages, drawn by the hash of a commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.pages import ROOT, load_script

numbers: Any = load_script("draw_numbers")
PAGE = """# Page

* command: `wavefront paper run main --items 3`

## What the paper claims, and what was found

| claim of the paper | where | found |
|---|---|---|
| The wave is above block | 1.5 | 2.5 |

## Right

| task | strategy | T | right, % | items | paper |
|---|---|---|---|---|---|
| gsm | `block(size=8)` | 16 | 95.6 [92.3, 97.5] | 250 | 80.74 |
| gsm | tide | 16 | – | 250 | – |

* It is 12.5 % of 3 items, with `tau=0.98` and an interval [1.5, 2.5].

## The paper's numbers (Table 1)

| model | right, % |
|---|---|
| LLaDA | 82.03 |

```bash
echo 9.9
```

<details markdown="1">
<summary>Configuration</summary>

* torch: `2.11`, 3.7 %
</details>
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "docs" / "results" / "main"
    folder.mkdir(parents=True)
    (folder / "summary.md").write_text(PAGE, "utf-8")
    return folder / "summary.md"


def test_measured_numbers_of_a_page_are_found(page: Path, tmp_path: Path) -> None:
    found = numbers.read_numbers(page, tmp_path)
    assert [(one.value, one.line) for one in found] == [("95.6", 15), ("12.5 %", 18)]
    assert found[0].text == "gsm, `block(size=8)`, T = 16: right, %"
    assert {one.command for one in found} == {"wavefront paper run main --items 3"}


def test_command_is_that_of_the_linked_page(page: Path, tmp_path: Path) -> None:
    summary = tmp_path / "docs" / "results.md"
    lines = "* It is 7.5 % ([main](results/main/summary.md)).", "* Also 8.5 %.", "# Next", "* 9.5 %"
    summary.write_text("\n\n".join(lines), "utf-8")
    found = numbers.read_numbers(summary, tmp_path)
    assert [(one.value, one.command) for one in found] == [
        ("7.5 %", "wavefront paper run main --items 3"),
        ("8.5 %", "wavefront paper run main --items 3"),
        ("9.5 %", numbers.NO_COMMAND),
    ]


def test_same_commit_gives_the_same_numbers_from_different_pages() -> None:
    pages = numbers.result_pages()
    first = numbers.draw("a" * 40, pages)
    assert len(first) == len({one.page for one in first}) == 10
    assert first == numbers.draw("a" * 40, [*reversed(pages)])
    assert first != numbers.draw("b" * 40, pages)
    for one in first:
        line = (ROOT / one.page).read_text("utf-8").splitlines()[one.line - 1]
        assert one.value in line


def test_every_page_of_results_has_numbers_and_their_command() -> None:
    for page in numbers.result_pages():
        found = numbers.read_numbers(page)
        assert found or page.parent.name == "case", page  # that page has only texts
        if page.name in ("summary.md", "README.md"):
            assert numbers.NO_COMMAND not in {one.command for one in found}, page


def test_drawn_numbers_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    numbers.main(["c" * 40, "--count", "2"])
    said = capsys.readouterr().out
    assert said.startswith(f"commit {'c' * 40}\n")
    assert said.count(".md:") == 2
