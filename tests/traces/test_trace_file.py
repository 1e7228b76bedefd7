"""Traces and their files: nothing is lost, the replay is the decode, and no file does harm."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wavefront
from wavefront import Trace
from wavefront.core import spec
from wavefront.core.canvas import Canvas, blank
from wavefront.core.errors import TraceError
from wavefront.core.state import Config, Step
from wavefront.engine.session import ALTERNATIVES, begin
from wavefront.models.toy import toy
from wavefront.player.player_data import decode_record
from wavefront.player.token_text import TokenReaders
from wavefront.strategies.blockwise import Blockwise
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.strategies.tide import Tide
from wavefront.strategies.wavefront import Wavefront
from wavefront.testing.simulation import MASK, PAD, simulate, tied_scores
from wavefront.traces import trace_file
from wavefront.traces.trace import BOARDS, Recorder
from wavefront.viewer.cells import Board
from wavefront.viewer.trace_stream import TraceStream

pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12], [20]]
PLACES = 12
BAND = (
    "tide(size=4, cascade_rounds=0, horizon=0, revisable_band=3, remask_below=0.9, "
    "selector=quota())"
)
EVERY = [
    *(f"{name}()" for name in spec.names("strategies") if name != "adablock"),
    "adablock(delimiters=(7, 30))",
    "wavefront(grow='accumulate')",
    "rcr(size=4, stat='max')",
    "tbd(size=5, drop=2, min_kept=1, gamma=0.5)",
    BAND,
    "tide(cascade_rounds=2, horizon=0, selector=threshold(tau=0.3))",
]
DOCUMENT = Path(__file__).parents[2] / "docs" / "traces.md"


@pytest.fixture(scope="module")
def model() -> Any:
    return toy(seed=3)


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def decoded(model: Any, kind: str, **options: Any) -> tuple[Trace, list[Canvas]]:
    """Return a trace of three rows, and the canvas after every step of the decode."""
    given = {"max_new_tokens": PLACES, **options}
    decoding = begin(model, PROMPTS, given, record=kind)
    canvases = [step.canvas for step in decoding]
    trace = decoding.trace()
    assert trace is not None
    return trace, canvases


def saved(trace: Trace, folder: Path) -> Trace:
    return trace_file.load(trace_file.save(trace, folder / "trace.npz"))


def same_canvas(one: Canvas, two: Canvas) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def assert_equal(one: Trace, two: Trace) -> None:
    """Assert that `two` is `one` read back, except for what a basic trace does not keep."""
    assert same_canvas(one.first, two.first)
    for name in (*BOARDS, "launched", "overrides"):
        mine, other = getattr(one, name), getattr(two, name)
        assert mine.dtype == other.dtype
        if name in ("tokens", "logp"):
            assert torch.equal(mine[one.commit], other[one.commit])
        else:
            assert torch.equal(mine, other), name
    assert (one.mask_id, one.full, len(one)) == (two.mask_id, two.full, len(two))
    assert one.forwards == two.forwards
    if one.full:
        for name in ("logp", "score", "entropy"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name
    assert (one.alternatives is None) == (two.alternatives is None)
    if one.alternatives is not None and two.alternatives is not None:
        assert torch.equal(one.alternatives.tokens, two.alternatives.tokens)
        assert torch.allclose(one.alternatives.logp, two.alternatives.logp, rtol=1e-3, atol=1e-4)
    assert dict(one.about).items() <= dict(two.about).items()


# Nothing is lost.


@pytest.mark.parametrize("kind", ["basic", "full"])
@pytest.mark.parametrize("text", EVERY)
def test_saved_trace_replays_every_canvas(model, tmp_path, text, kind):
    taken = 0
    for steps in (PLACES, 5):
        trace, canvases = decoded(model, kind, strategy=text, steps=steps)
        again = saved(trace, tmp_path)
        assert_equal(trace, again)
        assert len(canvases) == len(again)
        assert all(map(same_canvas, again.replay(), canvases))
        seen = [again.first, *canvases[:-1]]
        assert all(map(same_canvas, again.before(), seen))
        taken += int(again.remask.sum())
    if text.startswith(("rcr(size", "tbd(size", "tide(size")):
        assert taken > 0  # or nothing is shown of taking back


def test_full_trace_has_statistics_for_every_masked_position(model, tmp_path):
    trace, _ = decoded(model, "full", strategy="block(size=4)", eos="keep")
    again = saved(trace, tmp_path)
    assert again.entropy is not None
    assert again.alternatives is not None
    masked = torch.stack([canvas.masked for canvas in again.before()])
    assert bool((again.entropy[masked] > 0).all())
    # The mask may be among the likeliest, and it is never proposed; otherwise the first is.
    proposed = (again.alternatives.tokens == trace.tokens[..., None])[masked]
    assert bool((proposed[:, :2].sum(-1) == 1).all())
    assert torch.allclose(again.alternatives.logp[masked][proposed], again.logp[masked], rtol=1e-3)
    assert again.alternatives.tokens.shape[-1] == ALTERNATIVES
    basic, _ = decoded(model, "basic", strategy="block(size=4)", eos="keep")
    assert torch.equal(basic.commit, again.commit)
    assert not basic.full


@pytest.mark.parametrize("draft", [0, 3])
@pytest.mark.parametrize("eos", ["keep", "stop"])
def test_batches_with_speculation_and_early_ends_round_trip(model, tmp_path, draft, eos):
    options = {"strategy": "wavefront(size=4)", "speculate": draft, "eos": eos, "steps": 20}
    trace, canvases = decoded(model, "basic", stop_ids=[22], **options)
    again = saved(trace, tmp_path)
    assert_equal(trace, again)
    assert all(map(same_canvas, again.replay(), canvases))
    assert again.forwards < len(again) if draft else again.forwards >= len(again)


@pytest.mark.parametrize("kind", ["basic", "full"])
def test_infill_round_trips(lm, tmp_path, kind):
    answer = lm.infill("The <mask:4> and the <mask:3>!", strategy="rcr(size=3)", trace=kind)
    assert answer.trace is not None
    again = saved(answer.trace, tmp_path)
    assert_equal(answer.trace, again)
    *_, last = again.replay()
    assert lm.tokenizer.decode(last.tokens[0].tolist()) == answer.text
    assert again.about["infilling"] is True


def test_header_records_model_and_options(lm, tmp_path):
    options = {"max_new_tokens": 4, "seed": 7, "temperature": 0.5, "strategy": "wavefront"}
    made = lm.generate("Hi", trace=True, **options)
    about = saved(made.trace, tmp_path).about
    assert about["model"] == "toy"
    assert about["family"] == lm.model.family
    assert (about["dtype"], about["device"]) == ("float32", "cpu")
    assert about["wavefront"] == wavefront.__version__
    assert about["torch"] == torch.__version__
    assert about["options"]["seed"] == 7
    assert about["options"]["strategy"] == "wavefront(size=8, radius=2, grow='rebuild')"
    assert lm.generate("Hi", **about["options"]).text == made.text


def test_file_has_the_text_of_every_token(lm, tmp_path):
    made = lm.generate("Hi", max_new_tokens=8, trace="full")
    again = saved(made.trace, tmp_path)
    *_, last = again.replay()
    for token in last.tokens.flatten().tolist():
        assert again.about["texts"][str(token)] == lm.tokenizer.pieces([token])[0]
    assert {str(t) for t in again.alternatives.tokens.flatten().tolist()} <= again.about[
        "texts"
    ].keys()
    assert again.about["special_ids"] == [
        t for t in lm.tokenizer.special_ids if str(t) in again.about["texts"]
    ]


def test_traces_of_zero_and_one_step_round_trip(model, tmp_path):
    recorder = Recorder(
        blank(PROMPTS, 3, mask_id=63, pad_id=62),
        Config(strategy=spec.resolve("standard", "strategies")),
        63,
    )
    empty = saved(recorder.trace(), tmp_path)
    assert len(empty) == empty.forwards == 0
    assert list(empty.replay()) == []
    trace, canvases = decoded(model, "full", steps=1)
    assert_equal(trace, saved(trace, tmp_path))
    assert len(canvases) == 1


# Parts of a trace.


@pytest.mark.parametrize("kind", ["basic", "full"])
def test_row_is_a_separate_trace(model, kind):
    trace, canvases = decoded(model, kind, strategy="rcr(size=4)")
    for row in (0, 1, -1):
        one = trace.row(row)
        for found, canvas in zip(one.replay(), canvases, strict=True):
            assert torch.equal(found.tokens[0], canvas.tokens[row])
        assert one.full == trace.full
        assert one.step.shape == (len(trace), 1)
    with pytest.raises(IndexError):
        trace.row(3)


@pytest.mark.parametrize("kind", ["basic", "full"])
def test_trace_can_be_cut_and_joined(model, tmp_path, kind):
    trace, canvases = decoded(model, kind, strategy=BAND)
    for at in (0, 1, 5, len(trace)):
        begun = trace.until(at)
        assert len(begun) == at
        rest, _ = decoded(model, kind, strategy="standard")
        joined = begun.followed_by(rest)
        assert len(joined) == at + len(rest)
        assert joined.forwards == begun.forwards + rest.forwards
        assert bool((joined.launched.diff() >= 0).all())
        assert list(map(same_canvas, begun.replay(), canvases)) == [True] * at
        assert joined.full == (kind == "full")
    assert decoded(model, "full")[0].followed_by(decoded(model, "basic")[0]).full is False


def test_position_committed_and_remasked_in_one_step_stays_masked(model):
    trace, _ = decoded(model, "basic", strategy="standard")
    again = replace(trace, remask=trace.commit)
    assert all(same_canvas(canvas, trace.first) for canvas in again.replay())


def test_overrides_are_replayed(model, tmp_path):
    trace, canvases = decoded(model, "basic", strategy="standard")
    filled, decided = 7, int(trace.commit[0, 1].nonzero()[0])
    assert bool(canvases[2].masked[0, filled])
    notes = torch.tensor([[3, 0, filled, 41], [3, 1, decided, 42]])
    changed = saved(replace(trace, overrides=notes), tmp_path)
    before, after = list(changed.before()), list(changed.replay())
    assert same_canvas(before[2], canvases[1])
    assert same_canvas(after[2], canvases[2])
    assert before[3].tokens[0, filled] == 41
    assert bool(before[3].known[0, filled])
    assert not bool(before[3].masked[0, filled])
    assert after[-1].tokens[1, decided] == 42
    assert changed.row(1).overrides.tolist() == [[3, 0, decided, 42]]
    assert changed.until(3).overrides.tolist() == []
    assert changed.until(4).followed_by(changed).overrides[:, 0].tolist() == [3, 3, 7, 7]


# Small, and simple to read.


def long_trace(strategy: str) -> Trace:
    """Make a trace of 1024 steps of one row of 1152 positions."""
    canvas = blank([[5] * 128], 1024, mask_id=MASK, pad_id=PAD)
    made = spec.resolve(strategy, "strategies")
    recorder = Recorder(canvas, Config(strategy=made), MASK)
    steps = []
    for number, (_, view, decision, rows) in enumerate(
        simulate(made, canvas, tied_scores(0, 1 << 20), steps=1024)
    ):
        steps.append(
            Step(number, number + 1, 0, view, decision, rows.canvas, rows.final, rows.done)
        )
    list(recorder.watch(steps))
    return recorder.trace()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["wavefront", "standard"])
def test_thousand_steps_take_less_than_four_megabytes(tmp_path, strategy):
    trace = long_trace(strategy)
    assert trace.commit.shape == (1024, 1, 1152)
    file = trace_file.save(trace, tmp_path / "long")
    assert file.name == "long.npz"
    assert file.stat().st_size < 4_000_000
    again = trace_file.load(file)
    assert_equal(trace, again)
    *_, last = again.replay()
    assert not bool(last.masked.any())


def test_documented_numpy_reader_works(lm, tmp_path):
    """Run the reader from the documentation unchanged, in a Python without wavefront."""
    (code,) = re.findall(r"```python\n(import json.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    made = lm.generate("Hi there", strategy="rcr(size=4)", max_new_tokens=12, trace=True)
    file = trace_file.save(made.trace, tmp_path / "trace.npz")
    code += "\nimport sys; assert 'torch' not in sys.modules and 'wavefront' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code.replace("figs.npz", str(file))],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(made.trace)
    special = {str(one) for one in made.trace.about["special_ids"]}
    texts = made.trace.about["texts"]
    *_, last = made.trace.replay()
    assert eval(lines[-1]) == "".join(texts[str(t)] for t in last.tokens[0].tolist())
    assert special


@pytest.mark.slow
def test_documentation_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(from wavefront.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "#### 3"
    assert "None" in lines


# What is not a trace.


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace, _ = decoded(toy(seed=3), "full", strategy="rcr(size=4)")
    return trace_file.save(trace, tmp_path_factory.mktemp("good") / "good.npz")


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace, _ = decoded(toy(seed=3), "basic")
    return trace_file.save(trace, tmp_path_factory.mktemp("good") / "basic.npz")


def refusal(file: Path) -> str:
    """Return the error message for a file that cannot be read."""
    with pytest.raises(TraceError) as caught:
        trace_file.load(file)
    said = str(caught.value)
    assert said.startswith(str(file))
    assert said.endswith(".")
    assert "\n" not in said
    assert caught.value.__cause__ is None
    return said


def changed(good: Path, folder: Path, **arrays: Any) -> Path:
    """Write the file with some arrays replaced. None removes an array."""
    with np.load(good) as found:
        kept = dict(found) | arrays
    file = folder / "changed.npz"
    np.savez(file, **{name: array for name, array in kept.items() if array is not None})
    return file


def with_header(good: Path, folder: Path, **changes: Any) -> Path:
    with np.load(good) as found:
        header = json.loads(bytes(found["header"])) | changes
    return changed(good, folder, header=np.frombuffer(json.dumps(header).encode(), np.uint8))


def test_truncated_file_raises(good, tmp_path):
    data = good.read_bytes()
    file = tmp_path / "cut.npz"
    cuts = {*range(0, len(data), max(1, len(data) // 80)), *range(1, 40), *range(-40, 0)}
    for cut in sorted(cuts):
        file.write_bytes(data[:cut])
        said = refusal(file)
        assert "damaged" in said or "trace" in said


def test_file_with_a_changed_byte_is_read_or_raises(basic, tmp_path):
    data = bytearray(basic.read_bytes())
    file = tmp_path / "spoilt.npz"
    refused = 0
    for place in range(0, len(data), max(1, len(data) // 300)):
        spoilt = bytearray(data)
        spoilt[place] ^= 0xFF
        file.write_bytes(spoilt)
        try:
            trace_file.load(file)
        except TraceError as error:
            refused += "\n" not in str(error)
    assert refused > 200


def test_missing_path_or_folder_raises(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere.npz")
    assert "is a directory" in refusal(tmp_path)


def foreign(kind: str) -> bytes:
    out = io.BytesIO()
    if kind == "npz":
        np.savez(out, a=np.zeros(3))
    elif kind == "npz with a header":
        np.savez(out, header=np.zeros(3, np.uint8))
    elif kind == "npz with json":
        np.savez(out, header=np.frombuffer(b'{"format": "another"}', np.uint8))
    elif kind == "npz with a list":
        np.savez(out, header=np.frombuffer(b"[1]", np.uint8))
    elif kind == "npz with a nest":
        np.savez(out, header=np.frombuffer(b"[" * 200_000, np.uint8))
    elif kind == "npy":
        np.save(out, np.zeros(3))
    elif kind == "huge npy":
        out.write(b"\x93NUMPY\x01\x00v\x00")
        out.write(
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }".ljust(117)
            + b"\n"
        )
    elif kind == "zip":
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("readme.txt", "hello")
    elif kind == "empty zip":
        with zipfile.ZipFile(out, "w"):
            pass
    else:
        return {
            "empty": b"",
            "text": b"hello\n",
            "noise": bytes(range(256)) * 9,
            "PK": b"PK\x03\x04",
        }[kind]
    return out.getvalue()


@pytest.mark.parametrize(
    "kind",
    [
        *("npz", "npz with a header", "npz with json", "npz with a list", "npz with a nest"),
        *("npy", "huge npy", "zip", "empty zip", "empty", "text", "noise", "PK"),
    ],
)
def test_foreign_file_raises(kind, tmp_path):
    file = tmp_path / "foreign.npz"
    file.write_bytes(foreign(kind))
    said = refusal(file)
    assert "wavefront trace record" in said
    assert ("damaged" in said) == (kind == "PK")


@pytest.mark.parametrize("version", [0, 3, 99, "1", True, None])
def test_other_version_raises_with_its_number(good, tmp_path, version):
    said = refusal(with_header(good, tmp_path, version=version))
    assert f"version {version!r}" in said
    assert "reads versions 1 to 2" in said


def test_file_of_version_1_keeps_the_defaults_of_its_time(good, tmp_path):
    """Its specs of tide did not name the options that were off."""
    old = {
        "tide(size=8, radius=2)": Tide(cascade_rounds=0, horizon=0, selector=Quota()),
        "tide": Tide(cascade_rounds=0, horizon=0, selector=Quota()),
        "tide(size=4, radius=2, horizon=5)": Tide(4, cascade_rounds=0, horizon=5, selector=Quota()),
        "tide(cascade_rounds=2, selector=threshold(tau=0.3))": Tide(
            cascade_rounds=2, horizon=0, selector=Threshold(0.3)
        ),
        "blockwise(size=4, strategy=tide(size=8, radius=2))": Blockwise(
            4, Tide(cascade_rounds=0, horizon=0, selector=Quota())
        ),
        "wavefront(size=8, radius=2)": Wavefront(),
    }
    for text, meant in old.items():
        options = {"strategy": text}
        about = {"options": options, "fork": {"of": {"options": options}}}
        found = trace_file.load(with_header(good, tmp_path, version=1, about=about)).about
        for part in (found, found["fork"]["of"]):
            assert spec.resolve(part["options"]["strategy"], "strategies") == meant
        new = trace_file.load(with_header(good, tmp_path, version=2, about=about)).about
        assert new["options"] == options
    about = {"options": {"strategy": "tide(("}, "fork": 3}
    assert trace_file.load(with_header(good, tmp_path, version=1, about=about)).about == about


@pytest.mark.parametrize("infilling", [False, True])
def test_pinned_tokens_are_recorded_saved_and_shown(lm, tmp_path, infilling):
    """The digits are the model's choice; the rest is that of the expression."""
    regex = r"<[0-9]{3}>"
    if infilling:
        trace = lm.infill("a <mask:5> b", regex=regex, trace=True).trace
    else:
        trace = lm.generate(["hi", "ho"], max_new_tokens=8, regex=regex, trace=True)[0].trace
    *_, last = trace.replay()
    inside = (last.slot[0] >= 0).nonzero()[:, 0][:5]
    assert lm.tokenizer.decode(last.tokens[0, inside].tolist()).strip()[0] == "<"
    assert trace.pinned[0, inside].tolist() == [True, False, False, False, True]
    assert int(trace.pinned[0].sum()) == 2
    again = saved(trace, tmp_path)
    assert torch.equal(again.pinned, trace.pinned)
    assert torch.equal(again.row(-1).pinned, trace.pinned[-1:])
    assert again.until(1).pinned is None
    # The player and a terminal show the same positions.
    record = decode_record(
        again.row(0), TokenReaders().reader(again.about), title="", file="", trim=False
    )
    assert record.events[-1]["end"]["pinned"] == [0, 4]
    board = Board(stream := TraceStream(again), glow=0.0)
    for step in stream:
        board.add(step)
    board.frame()  # new commits are marked once
    assert [c.text for c in board.frame().cells if c.state == "pinned"] == ["<", ">"]
    plain, _ = decoded(lm.model, "basic")
    assert saved(plain, tmp_path).pinned is None


def test_pinned_position_outside_the_answer_raises(good, tmp_path):
    with np.load(good) as found:
        everywhere = np.full_like(found["known"], 255)
    assert "outside the answer" in refusal(changed(good, tmp_path, pinned=everywhere))


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": -1},
        {"steps": None},
        {"steps": True},
        {"rows": 2.5},
        {"length": "12"},
        {"mask_id": None},
        {"mask_id": -1},
        {"full": 1},
        {"full": None},
        {"about": None},
        {"about": "me"},
        {"alternatives": -1},
        {"alternatives": 4},
        {"steps": 3},
        {"rows": 2},
        {"length": 16},
        {"steps": 1 << 40, "rows": 0},
    ],
    ids=str,
)
def test_inconsistent_header_raises(good, tmp_path, changes):
    assert "damaged" in refusal(with_header(good, tmp_path, **changes))


def test_missing_array_raises(good, tmp_path):
    with np.load(good) as found:
        names = [name for name in found.files if name != "header"]
    assert len(names) == 17
    for name in names:
        assert f"{name} is missing" in refusal(changed(good, tmp_path, **{name: None}))


def test_array_of_wrong_shape_or_type_raises(good, tmp_path):
    with np.load(good) as found:
        arrays = dict(found)
    for name, array in arrays.items():
        with np.errstate(invalid="ignore"):  # -inf is no integer
            integers = array.astype(">i2")
        wrong = [array.astype(np.float64), integers, array[None], array.astype("U3")]
        if name != "header":
            wrong += [array[:-1], np.concatenate([array, array])] if "commits" not in name else []
        if array.ndim > 1:
            wrong += [array[..., :-1], np.asfortranarray(np.stack([array] * 2))]
        for other in wrong:
            if (
                name in ("remasks", "by_hand")
                and other.dtype == array.dtype
                and other.ndim == 2
                and other.shape[1] == array.shape[1]
            ):
                continue  # a shorter list is a list
            said = refusal(changed(good, tmp_path, **{name: other}))
            assert "damaged" in said or "not a trace" in said, name


@pytest.mark.parametrize(
    "event", [(99, 0, 0, 5), (0, 3, 0, 5), (0, 0, 17, 5), (-1, 0, 0, 5), (0, 0, 0, -5)]
)
@pytest.mark.parametrize("name", ["commits", "remasks", "by_hand"])
def test_event_outside_the_board_raises(good, tmp_path, name, event):
    columns = 3 if name == "remasks" else 4
    with np.load(good) as found:
        array, logp = found[name].copy(), found["commit_logp"]
    events = np.concatenate([array, np.array([event[:columns]], np.int32)])
    more = {"commit_logp": np.append(logp, logp[:1])} if name == "commits" else {}
    said = (
        refusal(changed(good, tmp_path, **{name: events}, **more))
        if event[3] > 0 or columns == 4
        else "damaged"
    )
    assert "damaged" in said


def test_inconsistent_canvas_raises(good, tmp_path):
    with np.load(good) as found:
        arrays = dict(found)
    masked = arrays["masked"]
    assert "inconsistent" in refusal(changed(good, tmp_path, known=masked))
    assert "inconsistent" in refusal(changed(good, tmp_path, masked=masked | 255))
    assert "inconsistent" in refusal(changed(good, tmp_path, tokens=arrays["tokens"] - 99))
    assert "numbered" in refusal(
        changed(good, tmp_path, slot=arrays["slot"] + (arrays["slot"] >= 0).astype(np.int32))
    )
    assert "in order" in refusal(changed(good, tmp_path, step=arrays["step"] - 50))
    assert "in order" in refusal(changed(good, tmp_path, launched=arrays["launched"][::-1].copy()))


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize("name", ["header", "tokens", "commits", "scope", "others"])
def test_nothing_is_ever_unpickled(good, tmp_path, name):
    refusal(changed(good, tmp_path, **{name: np.array([Trap()], dtype=object)}))


def claim(good: Path, file: Path, name: str, shape: tuple[int, ...], descr: str) -> Path:
    """Write the file with one array that claims a shape and holds almost nothing."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(good) as found, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        for member in found.namelist():
            mine = member == f"{name}.npy"
            out.writestr(member, head + bytes(1000) if mine else found.read(member))
    return file


def peak(file: Path) -> int:
    """Return the peak memory of rejecting a file, in bytes."""
    refusal(file)  # whatever is imported on the way
    tracemalloc.start()
    refusal(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


@pytest.mark.parametrize(
    "shape", [(1 << 40, 4), (1 << 26, 4), (-1, 4), (0, 1 << 60), (1 << 62, 1 << 62)]
)
def test_array_that_claims_to_be_huge_allocates_nothing(good, tmp_path, shape):
    file = claim(good, tmp_path / "claims.npz", "commits", shape, "<i4")
    assert peak(file) < 2_000_000
    file = claim(good, tmp_path / "claims.npz", "header", (1 << 40,), "|u1")
    assert peak(file) < 2_000_000


@pytest.mark.parametrize(
    "sizes",
    [(1 << 20, 1 << 10, 1 << 10), (1 << 27, 1, 1), (1 << 15, 1, 1 << 12), (1 << 30, 1 << 30, 0)],
)
def test_header_that_claims_to_be_huge_allocates_nothing(basic, tmp_path, sizes):
    claims = dict(zip(("steps", "rows", "length"), sizes, strict=True))
    assert peak(with_header(basic, tmp_path, **claims)) < 2_000_000


def test_decompression_bomb_is_not_read(good, basic, tmp_path, monkeypatch):
    """Zeros compress a thousand to one, so even real content can be too large."""
    trace = trace_file.load(basic)
    places = trace.commit.numel()
    with np.load(basic) as found:
        many = np.repeat(found["commits"], 1 + places // 4, axis=0)
        more = {"commits": many, "commit_logp": np.repeat(found["commit_logp"], 1 + places // 4)}
    assert len(trace_file.load(changed(basic, tmp_path, **more))) == len(trace)
    monkeypatch.setattr(trace_file, "MAX_POSITIONS", places)
    assert_equal(trace, trace_file.load(basic))
    assert "commits has the shape" in refusal(changed(basic, tmp_path, **more))
    assert "too many" in refusal(good)
    monkeypatch.setattr(trace_file, "MAX_POSITIONS", places - 1)
    assert "too many" in refusal(basic)
    monkeypatch.setattr(trace_file, "MAX_HEADER_BYTES", 100)
    assert "is not a trace" in refusal(basic)


def test_array_that_ends_early_raises(good, tmp_path):
    file = claim(good, tmp_path / "claims.npz", "commits", (1000, 4), "<i4")
    assert "commits is cut short" in refusal(file)


# Writing.


def test_failed_save_raises_and_leaves_no_file(good, tmp_path, monkeypatch):
    trace = trace_file.load(good)
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "trace.npz", ""):
        with pytest.raises(TraceError, match="cannot be written"):
            trace_file.save(trace, path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    (tmp_path / "old.npz").write_text("old")
    with pytest.raises(TraceError, match="no space left"):
        trace_file.save(trace, tmp_path / "old.npz")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "old.npz"]
    assert (tmp_path / "old.npz").read_text() == "old"  # whole or not at all


def test_save_creates_folders_and_keeps_the_suffix(good, tmp_path):
    trace = trace_file.load(good)
    assert trace_file.save(trace, tmp_path / "a" / "b" / "c").name == "c.npz"
    assert trace_file.save(trace, tmp_path / "c.trace").name == "c.trace"
    assert_equal(trace, trace_file.load(tmp_path / "c.trace"))


def test_trace_too_large_to_read_is_not_written(good, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "MAX_POSITIONS", 100)
    with pytest.raises(TraceError, match=r"trace\.row"):
        trace_file.save(decoded(toy(seed=3), "basic")[0], tmp_path / "trace.npz")


def test_equal_traces_give_equal_files(model, tmp_path):
    one, two = (decoded(model, "full", seed=1)[0] for _ in range(2))
    files = [
        trace_file.save(trace, tmp_path / name).read_bytes()
        for trace, name in ((one, "1"), (two, "2"))
    ]
    assert files[0] == files[1]


# Archives that claim more than they hold.


def with_end(file: Path, target: Path, *, entries: int, size: int, offset: int = 0) -> Path:
    """Write a sparse file whose end record claims a large directory."""
    with target.open("wb") as out:
        out.write(b"PK\x03\x04")
        out.truncate(1 << 36)
        out.seek(0, 2)
        counts = min(entries, 0xFFFF).to_bytes(2, "little") * 2
        sizes = min(size, 0xFFFFFFFF).to_bytes(4, "little") + offset.to_bytes(4, "little")
        if size > 0xFFFFFFFF:
            where = out.tell()
            record = b"PK\x06\x06" + (44).to_bytes(8, "little") + bytes(2 + 2 + 4 + 4)
            record += entries.to_bytes(8, "little") * 2 + size.to_bytes(8, "little") + bytes(8)
            out.write(record)
            out.write(b"PK\x06\x07" + bytes(4) + where.to_bytes(8, "little") + bytes(4))
        out.write(b"PK\x05\x06" + bytes(4) + counts + sizes + bytes(2))
    return target


@pytest.mark.parametrize("size", [1 << 20, 1 << 31, 1 << 35])
def test_directory_that_claims_to_be_huge_is_not_read(good, tmp_path, size):
    file = with_end(good, tmp_path / "end.npz", entries=size // 46, size=size)
    assert peak(file) < 2_000_000


def rewritten(
    good: Path, file: Path, *, method: int = zipfile.ZIP_DEFLATED, extra: int = 0
) -> Path:
    """Write the file with another compression, or with more members."""
    with zipfile.ZipFile(good) as found, zipfile.ZipFile(file, "w", method) as out:
        for member in found.namelist():
            out.writestr(member, found.read(member))
        for number in range(extra):
            out.writestr(f"extra{number}.npy", b"")
    return file


def test_archive_with_many_members_is_refused(good, tmp_path):
    assert "members" in refusal(rewritten(good, tmp_path / "many.npz", extra=1000))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_with_a_member_twice_is_refused(good, tmp_path):
    file = rewritten(good, tmp_path / "twice.npz")
    with zipfile.ZipFile(file, "a") as out:
        out.writestr("tokens.npy", b"")
    assert "tokens.npy is stored twice" in refusal(file)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compressions_are_refused(good, tmp_path, method):
    """Their decoders allocate as much memory as the file says."""
    assert "compress" in refusal(rewritten(good, tmp_path / "other.npz", method=method))
    assert_equal(trace_file.load(good), trace_file.load(rewritten(good, tmp_path / "same.npz")))
