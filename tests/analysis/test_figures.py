"""Figures: each is drawn in both styles and kinds, and is the same file for the same input."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import wavefront
from wavefront.analysis import figures
from wavefront.analysis.figures.case import display_text, lay_out
from wavefront.analysis.figures.curves import _looks as curve_looks
from wavefront.analysis.figures.parts import mean_by_item, spread_log_x
from wavefront.analysis.figures.style import LIGHT, label, looks
from wavefront.analysis.measures import calibration, dynamics, gradient, regret
from wavefront.results.interval import Interval

SPECS = ("standard", "block(size=4)", "wavefront(size=4, radius=2)")
NAMES = (
    "accuracy",
    "bars",
    "case",
    "curves",
    "dynamics",
    "frontier",
    "gaps",
    "gradient",
    "heatmap",
    "mhco",
    "quality",
    "regret",
    "reliability",
    "scaling",
    "strategies",
    "throughput",
    "trade",
    "tradeoff",
)


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw at a third of the resolution, to save time."""
    monkeypatch.setattr("wavefront.analysis.figures.style.DPI", 100)


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


@pytest.fixture(scope="module")
def pictures(lm: wavefront.LM) -> dict[str, figures.Figure]:
    """Return every figure, drawn from two small decodes."""
    scaled = [
        figures.ScalingCurve(who, side, (1, 2, 4), ms, ms, ms, (0.5, 1, 2), 1.0)
        for who, ms in (("exact", (1.0, 2.0, 4.1)), ("cached", (1.0, 1.1, 1.3)))
        for side in ("length", "batch")
    ]
    traces = {
        spec: lm.generate(["Hello", "Price: $5"], strategy=spec, max_new_tokens=12, trace="full")[
            0
        ].trace
        for spec in SPECS
    }
    fronts = {spec: dynamics.frontier(trace) for spec, trace in traces.items()}
    heat = dynamics.heat_map(traces[SPECS[2]], of="probability")
    regrets = {spec: regret.measure(trace, lm.model, every=4) for spec, trace in traces.items()}
    found = {spec: gradient.measure(trace) for spec, trace in traces.items()}
    sure = torch.linspace(0.05, 1, 60)
    bins = {
        spec: calibration.reliability(sure, sure > 0.4 + 0.1 * n) for n, spec in enumerate(SPECS)
    }  # equal diagrams would share a panel
    bars = [figures.Bar("gsm", spec, 0.1, 0.05, 0.2, 0.15) for spec in SPECS]
    curves = {s: figures.Line(g.by_distance.x, g.by_distance.mean) for s, g in found.items()}
    points = {spec: [figures.Point(t, t - 1, 0.5, 0.4, 0.6) for t in (4, 8)] for spec in SPECS}
    one = Interval(1.0, 0.9, 1.2)
    texts = {spec: [figures.QualityPoint(t, t, one, 12.0) for t in (4, 8)] for spec in SPECS}
    spots = [figures.TradeoffPoint(spec, 4.0 + n, 0.5, 0.4, 0.6) for n, spec in enumerate(SPECS)]
    return {
        "accuracy": figures.accuracy(points),
        "bars": figures.bars(bars, mark="the paper"),
        "case": figures.case(traces, lm.tokenizer.pieces, row=1),
        "curves": figures.curves(
            [
                figures.CurvePanel(
                    "gsm",
                    "correct, %",
                    {
                        s: [figures.CurvePoint(c, 9 * c, 0.5, 0.4, 0.6) for c in (4, 8)]
                        for s in SPECS
                    },
                )
            ]
        ),
        "dynamics": figures.dynamics(fronts, heat, regrets=regrets, width=4),
        "frontier": figures.frontier(fronts),
        "gaps": figures.gaps([figures.Gap("a", 1.0, -1.0, 2.0, 0.5)], xlabel="points"),
        "gradient": figures.gradient(curves, {s: g.containment for s, g in found.items()}),
        "heatmap": figures.heatmap(dynamics.heat_map(traces[SPECS[0]], of="entropy")),
        "mhco": figures.mhco({"candidates": bars, "extent": bars}),
        "quality": figures.quality([figures.QualityPanel("N = 8", texts, texts["standard"][0])]),
        "regret": figures.regret(regrets, "t"),
        "reliability": figures.reliability(bins),
        "scaling": figures.scaling(scaled),
        "strategies": figures.strategies(traces),
        "throughput": figures.throughput(scaled),
        "trade": figures.trade(
            {
                "gsm": {
                    "no cache": [figures.Trade(64, 0.6, 0.5, 0.7)],
                    "wave": [figures.Trade(c, 0.5, 0.4, 0.6) for c in (8, 16)],
                }
            }
        ),
        "tradeoff": figures.tradeoff(spots, chosen=SPECS[0]),
    }


def size_of_png(data: bytes) -> tuple[int, int]:
    """Return the width and height of a valid PNG."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, kinds = 8, []
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length :][:4])[0] == zlib.crc32(kind + body)
        kinds.append(kind)
        at += 12 + length
    assert kinds[-1] == b"IEND"
    assert b"tIME" not in kinds
    return struct.unpack(">II", data[16:24])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_save_writes_four_valid_files_that_are_reproducible(name, pictures, tmp_path) -> None:
    files = figures.save(pictures[name], tmp_path, name)
    ends = [file.name.removeprefix(name) for file in files]
    assert ends == [".png", ".svg", "-dark.png", "-dark.svg"]
    light, page, dark, dark_page = (file.read_bytes() for file in files)
    assert size_of_png(light) == size_of_png(dark)
    assert 300 < size_of_png(light)[0] <= 700  # one or two columns at 100 dots an inch
    assert light != dark
    for text in (page, dark_page):
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not list(root.iter("{http://www.w3.org/2000/svg}text"))  # letters are outlines
        assert b"<dc:date>" not in text
    assert figures.DARK.paper.encode() in dark_page
    assert figures.DARK.paper.encode() not in page
    assert pictures[name].bytes("svg") == page
    if name == "strategies":
        assert pictures[name].bytes("png") == light


@pytest.mark.slow
def test_layout_is_reproducible(pictures) -> None:
    """The layout solver varies in its last digits, which would change the SVG ids."""
    assert len({pictures["dynamics"].bytes("svg") for _ in range(12)}) == 1


def test_every_figure_function_is_tested() -> None:
    made = {name for name in figures.__all__ if name in NAMES}
    drawn = {n for n, one in vars(figures).items() if hasattr(one, "__wrapped__")}
    assert made == drawn == set(NAMES)


def test_drawing_does_not_change_matplotlib_settings(pictures) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    pictures["strategies"].bytes("png")
    assert dict(matplotlib.rcParams) == before


def test_strategy_keeps_its_look_and_two_of_a_kind_differ() -> None:
    alone = looks(["wavefront(size=4)"], figures.LIGHT)["wavefront(size=4)"]
    beside = looks(["block(size=8)", "wavefront(size=4)"], figures.LIGHT)["wavefront(size=4)"]
    assert alone == beside
    both = looks(["wavefront(size=4)", "wavefront(size=8)"], figures.LIGHT)
    first, second = both.values()
    assert first.colour == second.colour
    assert (first.dash, first.hollow) != (second.dash, second.hollow)
    assert len({look.colour for look in looks(SPECS, figures.DARK).values()}) == 3


def test_marks_of_adaptive_strategies_are_hollow() -> None:
    adaptive = "block(size=8, selector=threshold(tau={tau}))"
    found = curve_looks(["block(size=8)", "block(size=32)", adaptive], figures.LIGHT)
    assert [look.hollow for look in found.values()] == [False, False, True]
    first, second, third = found.values()
    assert first.dash != second.dash
    assert first.dash == third.dash  # a mark tells the two groups apart
    assert third.label == "block size=8, threshold"


@pytest.mark.parametrize(
    ("spec", "beside", "expected"),
    [
        ("wavefront(size=8)", ["block(size=8)"], "wavefront"),
        ("my.own.Thing(a=1)", [], "Thing"),
        ("left_to_right", [], "left to right"),
        ("block(size=8)", ["block(size=4)"], "block size=8"),
        ("wavefront(size=8, grow='accumulate')", ["wavefront(size=8)"], "wavefront accumulate"),
        ("block(selector=factor(a=1, b=2))", ["block()"], "block selector=factor(a=1, b=2)"),
        ("block(size=8, selector=share(tau={tau}))", ["block(size=8)"], "block share"),
    ],
)
def test_labels_are_short_and_distinct(spec, beside, expected) -> None:
    assert label(spec, [spec, *beside]) == expected


def test_each_item_has_the_same_weight() -> None:
    line = mean_by_item(torch.tensor([0, 0, 0, 1]), [5, 5, 5, 5], [1.0, 1.0, 1.0, 0.0])
    assert list(line.x) == [5]
    assert list(line.y) == [0.5]
    assert np.asarray(line.low)[0] == pytest.approx(0.5 - 1.96 * np.std([0, 1], ddof=1) / 2**0.5)


def test_tokens_are_laid_out_in_lines() -> None:
    cells = lay_out(["ab", "cd", "e\n", "f", "ghi"], 5)
    assert [(cell.line, cell.column) for cell in cells] == [(0, 0), (0, 2), (1, 0), (2, 0), (2, 1)]
    assert display_text("a\nb\x1b[0m\u202e") == "a↵b\ufffd[0m\ufffd"


def test_dollar_signs_are_not_parsed_as_math(lm, pictures) -> None:
    """matplotlib would parse dollar signs as math, and raise for an odd one."""
    trace = lm.generate("x", max_new_tokens=4, trace=True).trace
    shown = figures.case({"block": trace}, lambda ids: [r"$\frac{$" for _ in ids])
    assert shown.bytes("svg").startswith(b"<?xml")


@pytest.mark.slow
def test_missing_matplotlib_error_names_the_extra() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import importlib.util as util
real = util.find_spec
util.find_spec = lambda name, *more: None if name == "matplotlib" else real(name, *more)
from wavefront.analysis import figures  # describing a figure needs no matplotlib
figure = figures.bars([figures.Bar("gsm", "block", 0.5, 0.4, 0.6)])
try:
    figure.bytes("svg")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtraError ")
    assert "pip install -e '.[figures]'" in done.stdout


def test_whiskers_of_several_lines_do_not_overlap() -> None:
    lines = [[32, 64, 128], [32, 64, 128], [33, 64, 90], [31, 100]]
    moved = spread_log_x(lines)
    assert [len(line) for line in moved] == [3, 3, 3, 2]
    at = np.sort(np.log(np.concatenate(moved)))
    assert np.diff(at).min() > np.log(1.034)
    assert np.abs(at - np.sort(np.log(np.concatenate(lines)))).max() < np.log(1.08)
    assert [float(line[0]) for line in spread_log_x([[32], [64]])] == pytest.approx([32, 64])
    left, right = (float(line[0]) for line in spread_log_x([[32], [32]]))
    assert left < 32 < right
    assert left * right == pytest.approx(32**2)


def test_identical_panels_are_drawn_once() -> None:
    sure = torch.linspace(0.05, 1, 60)
    same, other = (calibration.reliability(sure, sure > cut) for cut in (0.4, 0.6))
    found = {"standard": other, "block(size=4)": same, "wavefront(size=4)": same}
    drawn = figures.reliability(found).draw(LIGHT)
    titles = [panel.get_title() for panel in drawn.axes if panel.get_title()]
    assert titles == ["standard", "block\n= wavefront"]
    for forwards, panels in ((lambda t: t, 1), (lambda t: t - 1, 2)):
        points = {s: [figures.Point(t, forwards(t), 0.5, 0.4, 0.6) for t in (4, 8)] for s in SPECS}
        assert len(figures.accuracy(points).draw(LIGHT).axes) == panels


def test_title_is_drawn_above_all_panels(pictures) -> None:
    plain = pictures["bars"]
    titled = replace(plain, title="Correct answers · gsm, which costs $5 · n = 8 · ripple")
    assert titled.bytes("svg") == titled.bytes("svg") != plain.bytes("svg")


def test_bars_that_are_all_zero_are_drawn() -> None:
    none = [figures.Bar("gsm", spec, 0.0, 0.0, 0.0) for spec in SPECS]
    assert figures.bars(none).bytes("svg")
    assert figures.mhco({"candidates": none, "extent": none}).bytes("svg")


def test_quality_leaves_out_equal_lengths() -> None:
    """A row of panels in which all texts have one length shows nothing."""

    def panels(*lengths: float) -> list[figures.QualityPanel]:
        points = [
            figures.QualityPoint(n, n, 1.0 / n, length) for n, length in enumerate(lengths, 1)
        ]
        return [figures.QualityPanel("N = 8", {"standard": points}, points[0])]

    drawn = [figures.quality(panels(*lengths)).draw(LIGHT) for lengths in ((8, 8), (8, 5))]
    labels = [[axes.get_ylabel() for axes in figure.axes] for figure in drawn]
    assert labels == [["nats per token"], ["nats per token", "tokens"]]


def test_diagrams_that_look_the_same_are_drawn_once() -> None:
    """Two runs of one decode differ in the last digits of a mean confidence."""
    sure = torch.linspace(0.05, 1, 60)
    one = calibration.reliability(sure, sure > 0.4)
    same = calibration.reliability(sure - 1e-5, sure > 0.4)
    drawn = figures.reliability({SPECS[0]: one, SPECS[1]: same}).draw(LIGHT)
    assert len(drawn.axes) == 2, "one diagram, and its counts"
    other = calibration.reliability(sure, sure > 0.6)
    assert len(figures.reliability({SPECS[0]: one, SPECS[1]: other}).draw(LIGHT).axes) == 4
