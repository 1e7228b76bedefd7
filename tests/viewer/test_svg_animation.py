"""The SVG animation: every commit appears at its forward pass, and no text becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from helpers.commands import run

import wavefront
from wavefront.core import spec
from wavefront.traces import trace_file
from wavefront.traces.trace import Trace
from wavefront.viewer.svg_animation import REST, _looks, animation

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def decoded(lm: wavefront.LM, strategy: str = "wavefront", **options) -> Trace:
    made = lm.generate("Hi", max_new_tokens=12, strategy=strategy, trace=True, **options).trace
    assert made is not None
    return made


def spans(svg: str) -> dict[str, tuple[float, bool]]:
    """Return for every named span when it begins, in percent, and whether it ends."""
    found = re.findall(r"@keyframes (k\d+)\{from,([\d.]+)%\{opacity:0\}(.*)\}\.k", svg)
    return {name: (float(begin), "to{opacity:0}" in rest) for name, begin, rest in found}


@pytest.mark.parametrize("strategy", spec.names("strategies"))
def test_every_commit_appears_at_its_forward(lm: wavefront.LM, strategy: str) -> None:
    trace = decoded(lm, strategy)
    svg = animation([trace])
    tree, when = ElementTree.fromstring(svg), spans(svg)
    shown = [g.get("class", "").split() for g in tree.iter(f"{SVG}g") if g.get("class")]
    assert len(shown) == int(trace.commit.sum())
    stays = sorted(when[name][0] for name, *more in shown if not more)
    final = trace.commit.long().cumsum(0).argmax(0)[0, -12:].tolist()  # the step of the last commit
    clock = [100 * (1 - REST) * int(trace.launched[step]) / trace.forwards for step in final]
    assert stays == pytest.approx(sorted(clock), abs=0.01)
    assert len([1 for _, *more in shown if more]) == int(trace.remask.sum())


def test_all_decodes_share_one_clock(lm: wavefront.LM) -> None:
    slow, quick = decoded(lm), decoded(lm, steps=3)
    both, alone = spans(animation([slow, quick])), spans(animation([quick]))
    assert max(begin for begin, _ in alone.values()) == pytest.approx(100 * (1 - REST))
    latest = 100 * (1 - REST) * quick.forwards / slow.forwards
    assert any(begin == pytest.approx(latest, abs=0.01) for begin, _ in both.values())


def test_candidates_are_outlined_until_they_are_committed(lm: wavefront.LM) -> None:
    looks, _ = _looks(decoded(lm, "left_to_right"))
    commits = {one.position: one.begin for one in looks if one.kind != "f"}
    outlined = {one.position: one for one in looks if one.kind == "f"}
    assert set(outlined) == set(commits)
    assert all(one.end == commits[position] for position, one in outlined.items())


def test_texts_and_names_are_escaped(lm: wavefront.LM) -> None:
    trace = decoded(lm)
    texts = {str(token): "<script>&'\x1b\u202e" for token in trace.tokens.unique().tolist()}
    trace = replace(trace, about={**trace.about, "texts": texts})
    svg = animation([trace], names=["<b>&"])
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert "<b>" not in svg
    assert not re.search("[\x00-\x08\x1b\u202e]", svg)


def test_equal_decodes_make_equal_files_and_long_names_are_cut(lm: wavefront.LM) -> None:
    trace = decoded(lm)
    assert animation([trace]) == animation([decoded(lm)])
    assert f"{'x' * 20}…" in animation([trace], names=["x" * 200])
    ElementTree.fromstring(animation([trace.until(0)]))


def test_command_writes_a_file_or_standard_output(lm: wavefront.LM, tmp_path: Path) -> None:
    file, out = trace_file.save(decoded(lm), tmp_path / "a.npz"), tmp_path / "wave.svg"
    run("trace", "draw", str(file), str(file), "-o", str(out), "--seconds", "4")
    drawn = out.read_text()
    ElementTree.fromstring(drawn)
    assert " 4s infinite" in drawn
    assert run("trace", "draw", str(file)).stdout.startswith("<svg")
    assert "seconds must be" in run("trace", "draw", str(file), "--seconds", "0", code=1).stderr
    many = run("trace", "draw", *[str(file)] * 5, code=2).stderr
    assert "at most 4 traces" in many
    nowhere = str(tmp_path / "no" / "wave.svg")
    assert "cannot be written" in run("trace", "draw", str(file), "-o", nowhere, code=1).stderr
