"""The terminal view: its contents, its size, and no untrusted control characters."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import wavefront
from wavefront.analysis.measures._shared import visible_positions
from wavefront.player import visible_text
from wavefront.viewer import Board, screen, terminal_layout, watch
from wavefront.viewer.terminal_layout import Cell, Frame
from wavefront.viewer.trace_stream import TraceStream

ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def lm() -> Iterator[wavefront.LM]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield wavefront.load("toy")
    torch.set_num_threads(threads)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def frame(cells: list[Cell], **changes: object) -> Frame:
    made = Frame(cells, "wavefront()", 3, 8, 3, 3, 8, 1.25)
    return made._replace(**changes)  # pyright: ignore[reportArgumentType]


def terminal(width: int = 80, height: int = 24, **settings: object) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        color_system="truecolor",
        **settings,  # pyright: ignore[reportArgumentType]
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def shown(group: object, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(group)
    return written(console).splitlines()


# Text.


def test_printable_drops_control_characters_and_keeps_text() -> None:
    nasty = "a\x1b[31mb\x07\x00c\x9b0md\r\n\te\x7f"
    assert visible_text.printable(nasty) == "a[31mbc0md\n\te"
    assert visible_text.printable("déjà 日本 😀 \u200d") == "déjà 日本 😀 \u200d"


@given(st.text())
def test_no_text_puts_a_control_character_on_the_screen(text: str) -> None:
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", visible_text.visible(text)
    )
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", visible_text.printable(text))


def test_invisible_characters_are_shown_as_signs() -> None:
    assert visible_text.visible("a\nb\tc\x1b\x7f\x9b\u202e") == "a⏎\nb␉c␛␡\ufffd\ufffd"


# Layout.


@example([("🏻", "prompt")], 2, False)  # no width alone
@example([("\u200d\u200dba\u0301e\u6f22", "prompt")], 3, False)  # joiners
@given(
    st.lists(st.tuples(st.text(max_size=12), st.sampled_from(list(terminal_layout.STYLES)))),
    st.integers(2, 60),
    st.booleans(),
)
def test_lines_fit_the_width_and_lose_nothing_but_a_blank(
    cells: list[tuple[str, str]], width: int, plain: bool
) -> None:
    lines = terminal_layout.wrap([Cell(*cell) for cell in cells], width, plain=plain)
    texts = ["".join(cell.text for cell in line) for line in lines]
    assert all(cell_len(text) <= width for text in texts)
    if not plain:
        wanted = "".join(visible_text.visible(text) for text, _ in cells)
        assert "".join(texts).replace(" ", "") == wanted.replace("\n", "").replace(" ", "")


def test_line_break_is_shown_and_breaks_the_line() -> None:
    lines = terminal_layout.wrap([Cell("one\n\n", "known"), Cell("two", "known")], 40)
    assert [[cell.text for cell in line] for line in lines] == [["one⏎"], ["⏎"], ["two"]]


def test_lines_break_between_tokens() -> None:
    cells = [Cell(" wave", "known"), Cell(" front", "known")]
    assert [line[0].text for line in terminal_layout.wrap(cells, 8)] == [" wave", "front"]


@pytest.mark.parametrize("width", [200, 80, 60, 40, 30, 12, 4])
def test_headline_fits_or_has_its_shortest_form(width: int) -> None:
    line = terminal_layout.headline(frame([], step=1024, steps=1024, forwards=1024), width)
    assert len(line) <= max(width, len("3/8"))


def test_headline_is_complete_in_80_columns() -> None:
    line = terminal_layout.headline(frame([]), 80)
    assert line == "step 3/8 · 3 forwards · 3/8 positions · 1.00 per forward · 1.2 s"


def test_front_stays_in_view_of_a_tall_answer() -> None:
    for at in range(0, 2000, 77):
        cells = [Cell("x", "known")] * at + [Cell(terminal_layout.FRONT, "front")]
        cells += [Cell(terminal_layout.MASKED, "masked")] * (2000 - at)
        group, _ = terminal_layout.draw(frame(cells), 40, 20, top=0)
        lines = shown(group, 40)
        assert len(lines) <= 20
        body = lines[3:-1]
        assert any(terminal_layout.FRONT in line for line in body)
        assert "lines" in lines[-1]


def test_view_does_not_move_while_the_front_is_in_it() -> None:
    def top(at: int, before: int) -> int:
        states = ["known"] * at + ["front"] + ["masked"] * (99 - at)
        lines = [[Cell("x", state)] for state in states]
        return terminal_layout.window(lines, 12, before)

    assert top(30, 28) == 28
    assert top(34, 28) == 28
    assert top(40, 28) == 36
    assert top(10, 28) == 6


def test_states_differ_by_style_and_not_by_colour_alone() -> None:
    bare = Console(no_color=True, force_terminal=True, file=io.StringIO())
    looks = set()
    for state in ("known", "sure", "likely", "unsure"):
        with bare.capture() as drawn:
            bare.print("x", style=terminal_layout.STYLES[state], end="")
        looks.add(drawn.get())
    assert len(looks) == 4


def test_confidence_levels() -> None:
    levels = [terminal_layout.level(p) for p in (0.0, 0.29, 0.3, 0.69, 0.7, 1.0)]
    assert levels == ["unsure", "unsure", "likely", "likely", "sure", "sure"]


# The board.


def test_board_follows_the_canvas(lm: wavefront.LM) -> None:
    stream = lm.stream("Hi", max_new_tokens=8, strategy="wavefront(size=3)")
    board = Board(stream, glow=0.0)
    first = board.frame()
    assert [cell.state for cell in first.cells] == ["prompt"] * 2 + ["masked"] * 8
    assert first[2:7] == (0, 8, 0, 0, 8)
    for number, step in enumerate(stream, 1):
        board.add(step)
        now = board.frame()
        assert now[2:7] == (number, 8, number, number, 8)
        states = [cell.state for cell in now.cells]
        masked = step.canvas.masked[0].tolist()
        scope = step.decision.candidates[0].tolist()
        assert [state == "front" for state in states] == [
            m and s for m, s in zip(masked, scope, strict=True)
        ]
        at = int(step.decision.commit[0].nonzero())
        expected = terminal_layout.level(float(step.view.stats.logp[0, at].exp()))
        assert states[at] == expected
        assert sum(state in terminal_layout.MARKS for state in states) == 1
    assert not {"front", "masked"} & {cell.state for cell in board.frame().cells}


def test_rest_of_the_last_block_is_not_shown() -> None:
    lm = wavefront.load("toy", attention="block", block_size=4)
    stream = lm.stream("Hi", max_new_tokens=5, eos="keep", trace=True)
    boards = [Board(stream, glow=0.0)]
    for step in stream:
        boards[0].add(step)
    trace = stream.completions[0].trace
    assert trace is not None
    film = TraceStream(trace)
    boards.append(Board(film, glow=0.0))
    for step in film:
        boards[1].add(step)
    for board in boards:
        now = board.frame()
        assert (now.committed, now.positions) == (5, 5)
        assert len([cell for cell in now.cells if cell.state != "prompt"]) == 5
    assert int(visible_positions(trace, []).sum()) == 5
    assert int((trace.first.slot >= 0).sum()) > 5


def test_skipped_steps_keep_their_own_confidence(lm: wavefront.LM) -> None:
    options = {"max_new_tokens": 12, "strategy": "standard"}
    each = {}
    for step in lm.stream("Hi", **options):  # pyright: ignore[reportArgumentType]
        at = int(step.decision.commit[0].nonzero())
        each[at] = terminal_layout.level(float(step.view.stats.logp[0, at].exp()))
    stream = lm.stream("Hi", **options)  # pyright: ignore[reportArgumentType]
    board = Board(stream)
    board.frame()
    for step in stream:
        board.add(step)
    states = {at: cell.state for at, cell in enumerate(board.frame().cells) if at in each}
    assert states == each


def test_commit_stays_coloured_for_a_moment(lm: wavefront.LM) -> None:
    clock = FakeClock()
    stream = lm.stream("Hi", max_new_tokens=4)
    board = Board(stream, glow=0.4, clock=clock)
    fresh = []
    for step in stream:
        board.add(step)
        clock.now += 0.3
        fresh.append(sum(cell.state in terminal_layout.MARKS for cell in board.frame().cells))
    assert fresh == [1, 2, 2, 2]
    clock.now += 1
    assert not any(cell.state in terminal_layout.MARKS for cell in board.frame().cells)


def test_tokens_of_one_character_are_joined(lm: wavefront.LM) -> None:
    board = Board(lm.stream("日本é😀!", max_new_tokens=2, raw=True))
    texts = [cell.text for cell in board.frame().cells]
    assert [text for text in texts if text] == ["日", "本", "é", "😀", "!", "·", "·"]


def test_end_and_control_tokens_have_their_own_signs(lm: wavefront.LM) -> None:
    stream = lm.stream("Hi", max_new_tokens=2)
    end, mask = lm.stop_ids[0], lm.model.mask_id
    tokens = stream.decoding.canvas.tokens.clone()
    tokens[0, :] = torch.tensor([mask, 40, end, 41])
    known = torch.ones_like(stream.decoding.canvas.known)
    stream.decoding.canvas = stream.decoding.canvas._replace(
        tokens=tokens, known=known, masked=~known
    )
    board = Board(stream)
    board._seen = {2: -9.0, 3: -9.0}
    texts = [(cell.text, cell.state) for cell in board.frame().cells]
    assert texts[0] == (terminal_layout.CONTROL, "prompt")
    assert texts[2] == (terminal_layout.END, "end")


def test_unknown_ids_are_shown(lm: wavefront.LM) -> None:
    stream = lm.stream("Hi", max_new_tokens=2)
    stream.decoding.canvas.tokens[0, 0] = 9999
    assert Board(stream).frame().cells[0].text == "\ufffd"


def test_padding_is_not_shown(lm: wavefront.LM) -> None:
    stream = lm.stream(["Hi", "Hello"], max_new_tokens=2)
    assert len(Board(stream, 0).frame().cells) == 4
    assert len(Board(stream, 1).frame().cells) == 7


# Watching.


def test_watch_yields_every_step_unchanged(lm: wavefront.LM) -> None:
    stream = lm.stream("Hi", max_new_tokens=8)
    steps = list(watch(stream, console=terminal()))
    assert [step.number for step in steps] == list(range(8))
    assert stream.completions[0].text == lm.generate("Hi", max_new_tokens=8).text


@pytest.mark.parametrize("size", [(80, 24), (40, 20), (10, 6)])
def test_last_frame_is_drawn_and_fits(lm: wavefront.LM, size: tuple[int, int]) -> None:
    console = terminal(*size)
    for _ in watch(lm.stream("Hi", max_new_tokens=300, steps=40), console=console):
        pass
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console))
    assert "300/300" in text
    assert all(cell_len(line) <= size[0] for line in text.replace("\r", "\n").splitlines())


def test_redraws_are_limited_but_include_the_last(
    lm: wavefront.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    show = screen.LiveScreen.show

    def note(self: screen.LiveScreen, frame: Frame) -> None:
        drawn.append(frame.step)
        show(self, frame)

    monkeypatch.setattr(screen, "PAUSE", 3600)
    monkeypatch.setattr(screen.LiveScreen, "show", note)
    for _ in watch(lm.stream("Hi", max_new_tokens=9), console=terminal()):
        pass
    assert drawn == [0, 9]


def test_plain_legend_explains_only_the_signs_that_are_shown() -> None:
    def frame(*cells: Cell) -> Frame:
        return Frame([*cells], "block", 1, 2, 1, 1, 2, None)

    assert terminal_layout.plain_legend([frame(Cell("a", "known"))], 80) == ""
    ended = frame(Cell("a", "known"), Cell(terminal_layout.END, "end"))
    assert terminal_layout.plain_legend([ended], 80) == "Signs: ∎ end of the answer."
    fresh = frame(Cell(" is", "likely"), Cell(terminal_layout.MASKED, "masked"))
    assert "[a?] 0.3 to 0.7" in terminal_layout.plain_legend([ended, fresh], 200)


def test_legend_explains_every_sign() -> None:
    text = terminal_layout.legend(80).plain
    signs = ("MASKED", "FRONT", "END", "CONTROL")
    assert all(getattr(terminal_layout, sign) in text for sign in signs)
    assert all(level in text for level in ("sure", "likely", "unsure"))


def test_transient_picture_leaves_one_line(lm: wavefront.LM) -> None:
    console = terminal(no_color=True)
    for _ in watch(lm.stream("Hi", max_new_tokens=4), console=console, transient=True):
        pass
    assert "step 4/4" in written(console).rstrip("\n").rpartition("\n")[2]


def test_untrusted_prompt_sends_no_control_characters(lm: wavefront.LM) -> None:
    console = terminal()
    attack = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    for _ in watch(lm.stream(attack, raw=True, max_new_tokens=4), console=console):
        pass
    out = written(console)
    assert "\x1b]" not in out
    assert "\x1b[2J" not in out
    assert "\x9b" not in out
    assert "\x07" not in out


def test_snapshots_in_a_file_are_plain_text(lm: wavefront.LM) -> None:
    console = Console(file=io.StringIO(), width=60)
    stream = lm.stream("Hi", max_new_tokens=40, strategy="wavefront")
    for _ in watch(stream, console=console):
        pass
    out = written(console)
    assert ESCAPE not in out
    assert out.startswith("wavefront(size=8, radius=2, grow='rebuild')\n")
    steps = re.findall(r"^step (\d+)/40", out, re.MULTILINE)
    assert steps == ["0", "10", "20", "30", "40"]
    assert all(cell_len(line) <= 60 for line in out.splitlines())
    assert "[" in out
    assert terminal_layout.FRONT in out
    legend = " ".join(out[out.index("Signs: ") :].split())
    assert legend == (
        "Signs: just committed, with probability [a] 0.7 or more, [a?] 0.3 to 0.7, [a??] less than "
        "0.3; □ front; · masked."
    )


def test_decode_that_ends_early_prints_its_last_snapshot(lm: wavefront.LM) -> None:
    console = Console(file=io.StringIO(), width=60)
    for number, _ in enumerate(watch(lm.stream("Hi", max_new_tokens=40), console=console)):
        if number == 3:
            break
    assert "step 0/40" in written(console)
    few = Console(file=io.StringIO(), width=60)
    for _ in watch(lm.stream("Hi", max_new_tokens=2), console=few):
        pass
    assert re.findall(r"^step (\d)/2", written(few), re.MULTILINE) == ["0", "1", "2"]


def test_infilling_can_be_watched(lm: wavefront.LM) -> None:
    stream = lm.stream_infill("a<mask:2>b<mask:1>")
    states = [cell.state for cell in Board(stream).frame().cells]
    assert states == ["prompt", "masked", "masked", "prompt", "masked"]
