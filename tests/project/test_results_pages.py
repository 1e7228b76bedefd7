"""Recorded pages name the decoding version that made them, or say that it was an earlier one."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from helpers.pages import ROOT

from wavefront.core.spec import resolve
from wavefront.evaluation.fingerprint import DECODING_VERSION
from wavefront.evaluation.protocol import ADAPTIVE, FIXED, settings_of
from wavefront.results.interval import Interval
from wavefront.results.table import interval_texts
from wavefront.testing.simulation import budgets, decisions, random_canvas, tied_scores

RESULTS = ROOT / "docs" / "results"
PAGES = sorted(file.parent.name for file in RESULTS.glob("*/summary.md"))
MARK = "**Recorded with an earlier decoding version; kept for reference.**"
INDEX = "## Pages of earlier decoding versions"
PAGE_LINK = r"\[[\w-]+\]\(results/[\w-]+/summary\.md\)"
FEWEST_WORDS = 5  # of a reason
# The order of all commits on given scores, by decoding version. If this changes, raise the version.
# Another list of compared strategies changes it too: then check that the hash of the old list is
# still the same. Without wino, the hash of version 3 is 641b79d5e5bbc63e.
DIGESTS = {2: "de644e292bdb1ced", 3: "ed24a9ef5bedafef"}


def recorded_version(page: str) -> int | None:
    """Return the decoding version that a page names, or None."""
    found = re.search(r"^\* decoding version: `(\d+)`$", page, re.MULTILINE)
    return int(found[1]) if found else None


def stale_pages(results: Path, index: str) -> list[str]:
    """Return what is wrong with the pages: versions without a mark, and marks without a reason."""
    part = index.partition(INDEX)[2].partition("\n## ")[0]
    # A bullet that begins with pages gives the reason why their numbers still hold, or do not.
    bullets = re.findall(rf"^\* ({PAGE_LINK}(?:, {PAGE_LINK})*): (.+)$", part, re.MULTILINE)
    listed = "".join(links for links, reason in bullets if len(reason.split()) >= FEWEST_WORDS)
    wrong = []
    for file in sorted(results.glob("*/summary.md")):
        name, text = file.parent.name, file.read_text("utf-8")
        current = recorded_version(text) == DECODING_VERSION
        in_index = f"(results/{name}/summary.md)" in listed
        if current and (MARK in text or in_index):
            wrong.append(f"{name} has the current version and is marked as an earlier one")
        elif not current and not (MARK in text and in_index):
            wrong.append(
                f"{name} has another decoding version: make it again, or mark it, with a reason"
            )
    return wrong


def test_pages_have_the_current_decoding_version_or_say_so() -> None:
    assert len(PAGES) > 15
    assert stale_pages(RESULTS, (ROOT / "docs" / "results.md").read_text("utf-8")) == []


HASH = r"\b[0-9a-f]{7,12}(?:-dirty)?\b"
WITHOUT_COMMIT = {"constraint"}  # it was made in a copy that was not a clone, and says so


@pytest.mark.parametrize("name", PAGES)
def test_page_names_its_command_commit_model_items_and_hardware(name: str) -> None:
    page = (RESULTS / name / "summary.md").read_text("utf-8")
    assert re.search(r"`(python runs/|wavefront )[^`]+`", page)
    assert re.search(r"\bripple\b|\btale\b|\bqwen\b|LLaDA-8B", page)
    assert re.search(r"NVIDIA H200|CPU|EPYC|Xeon", page)
    assert re.search(rf"`{HASH}`|'{HASH}'", page) or name in WITHOUT_COMMIT
    if "* experiment: `" in page:  # written by `wavefront paper run`
        for field in ("command", "commit", "models", "items of each task", "device"):
            assert re.search(rf"^\* {field}: `.+`$", page, re.MULTILINE), field
    elif name != "bench":  # it measures times of random weights
        assert re.search(r"\bitems\b|\bn\b", page)


def test_page_of_our_own_tasks_is_not_titled_as_the_benchmark() -> None:
    title, _, page = (RESULTS / "bbh" / "summary.md").read_text("utf-8").partition("\n")
    assert "| bbh_" not in page, "the tasks are our own"
    assert title == "# Our BBH-like tasks, one by one (Tables 6 and 7 of the paper)"


@pytest.mark.parametrize("name", PAGES)
def test_our_own_tasks_do_not_have_the_name_of_a_data_set(name: str) -> None:
    page = (RESULTS / name / "summary.md").read_text("utf-8")
    assert not re.search(r"\| ripple \| (GSM8K|HumanEval|MATH|MBPP|BBH) \|", page)


def test_unmarked_page_of_another_version_is_found(tmp_path: Path) -> None:
    def page(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.md").write_text(text, "utf-8")

    page("new", f"# New\n\n* decoding version: `{DECODING_VERSION}`\n")
    page("old", f"# Old\n\n{MARK}\n\n* decoding version: `1`\n")
    page("silent", "# Silent\n")
    page("both", f"# Both\n\n{MARK}\n\n* decoding version: `{DECODING_VERSION}`\n")
    listed = "* [old](results/old/summary.md): it needs a machine that is gone."
    index = f"{INDEX}\n\n{listed}\n\n## Other\n"
    assert stale_pages(tmp_path, index) == [
        "both has the current version and is marked as an earlier one",
        "silent has another decoding version: make it again, or mark it, with a reason",
    ]
    without_reason = index.replace(": it needs a machine that is gone.", ": old.")
    for other in ("nothing is listed", without_reason):
        said = "old has another decoding version: make it again, or mark it, with a reason"
        assert said in stale_pages(tmp_path, other)


NUMBER = r"([+-]?\d+(?:\.\d+)?)"
INTERVAL = re.compile(rf"\| {NUMBER} \[{NUMBER}, {NUMBER}\] (?=\|)")


@pytest.mark.parametrize("name", [name for name in PAGES if name != "bench"])  # it has quartiles
def test_intervals_have_the_decimals_of_their_sample(name: str) -> None:
    """Two digits of the width are enough; more would pretend a precision that is not there."""
    for texts in INTERVAL.findall((RESULTS / name / "summary.md").read_text("utf-8")):
        value, low, high = map(float, texts)
        if high > low:
            expected = interval_texts(Interval(value, low, high))
            # Some pages give all percentage points with one decimal, so one more is allowed.
            most = max(len(text.partition(".")[2]) for text in expected) + 1
            assert max(len(text.partition(".")[2]) for text in texts) <= most, texts


def commit_digest() -> str:
    """Return a hash of every commit of every compared strategy, on scores with and without ties."""
    found = sha256()
    for family in (*FIXED, *ADAPTIVE):
        for spec in settings_of(family)[::3]:
            strategy = resolve(spec, "strategies")
            for steps in budgets(strategy):
                scores = tied_scores(3, 7), tied_scores(4, 1 << 20)
                for some in scores:
                    made = decisions(strategy, random_canvas(5), some, steps=steps)
                    board = torch.stack([one.commit for one in made]).to(torch.uint8)
                    found.update(f"{spec} {steps}".encode() + bytes(board.flatten().tolist()))
    return found.hexdigest()[:16]


@pytest.mark.slow
def test_other_commits_need_another_decoding_version() -> None:
    """If this fails, a decode gives another order: raise DECODING_VERSION, and add the digest."""
    assert commit_digest() == DIGESTS[DECODING_VERSION]
