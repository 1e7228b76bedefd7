"""Draw decodes as one SVG file that plays by itself in a browser or a README.

All decodes share one clock of forward passes, so a strategy that needs fewer finishes earlier. A
position is outlined while it is a candidate. Its token appears in a colour for its probability.
If the reader prefers reduced motion, the final answers are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from wavefront.player.palette import DRAWING, HUES, Colour
from wavefront.player.visible_text import visible
from wavefront.viewer.terminal_layout import END, level
from wavefront.viewer.trace_stream import TraceStream, titles

if TYPE_CHECKING:
    from wavefront.core.state import Step
    from wavefront.traces.trace import Trace

COLUMNS = 62  # of text
WIDE, HIGH, LEFT = 8.4, 22, 14  # sizes of a column, a line and the margin
REST = 0.16  # share of the time for which the end is shown before the animation starts again


class Box(NamedTuple):
    """Where a position of the answer is drawn, in columns and lines."""

    column: int
    line: int
    width: int


class Look(NamedTuple):
    """What a position shows from forward pass `begin` to forward pass `end`."""

    position: int
    begin: int
    end: int | None  # None: until the end
    kind: str
    text: str = ""


def animation(traces: Sequence[Trace], *, names: Sequence[str] = (), seconds: float = 10.0) -> str:
    """Return an SVG of the first row of every trace, titled by `names` or by strategy."""
    looks = [_looks(trace) for trace in traces]
    last = max((trace.forwards for trace in traces), default=1)
    moments = _Moments(seconds, max(last, 1))
    body, top = [], 6
    heads = names or [titles(trace)[-1] for trace in traces]
    for trace, head, (found, texts) in zip(traces, heads, looks, strict=True):
        counts = f"{trace.forwards} forwards"
        card, high = _card((head, counts), found, _layout(texts), top=top, moments=moments)
        body.append(card)
        top += high + 8
    width = round(2 * LEFT + WIDE * COLUMNS)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width + 12} {top}' "
        f"width='{width + 12}'>\n<style>{style()}\n{moments.rules()}</style>\n"
        f"{''.join(body)}</svg>\n"
    )


def style() -> str:
    """Return the CSS rules of the palette; with reduced motion the final answers are shown."""
    dark = _rules(lambda colour: colour.dark)
    return (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}.h{font-weight:bold}\n"
        f".f{{fill:none;stroke-width:1.5}}\n{_rules(lambda colour: colour.light)}\n"
        f"@media(prefers-color-scheme:dark){{{dark}}}\n"
        "@media(prefers-reduced-motion:reduce){g,rect{animation:none!important}.g{display:none}}"
    )


def _rules(shade: Callable[[Colour], str]) -> str:
    fills = {"text": "ink", ".n,.end": "soft", ".c": "paper", ".m": "masked"}
    fills |= {f".{name}": name for name in ("sure", "likely", "unsure", "back")}
    rules = [f"{where}{{fill:{shade(DRAWING[name])}}}" for where, name in fills.items()]
    rules.append(f".c{{stroke:{shade(DRAWING['faint'])}}}")
    rules.append(f".f{{stroke:{shade(HUES['blue'])}}}")
    return "".join(rules)


class _Moments:
    """The CSS animations: one name for each span of time."""

    def __init__(self, seconds: float, last: int) -> None:
        self._seconds, self._last, self._names = seconds, last, dict[tuple[int, int | None], str]()

    def name(self, begin: int, end: int | None) -> str:
        return self._names.setdefault((begin, end), f"k{len(self._names)}")

    def rules(self) -> str:
        """Return rules that show an element during its span, repeatedly."""
        made = []
        for (begin, end), name in self._names.items():
            on, off = self._percent(begin), 100 if end is None else self._percent(end)
            until = f"{off:g}%,to{{opacity:0}}" if end is not None else ""
            made.append(
                f"@keyframes {name}{{from,{on:g}%{{opacity:0}}{on + 0.01:g}%,{off - 0.01:g}%"
                f"{{opacity:1}}{until}}}.{name}{{animation:{name} {self._seconds:g}s infinite}}"
            )
        return "\n".join(made)

    def _percent(self, forwards: int) -> float:
        return round(100 * (1 - REST) * forwards / self._last, 2)


def _looks(trace: Trace) -> tuple[list[Look], list[str]]:
    """Return what the positions of the first row show and when, and their final texts."""
    stream = TraceStream(trace)
    positions = trace.answer[0].nonzero()[:, 0].tolist()
    stops = frozenset(stream.decoding.plan.config.sampling.stop_ids)

    def word(token: int) -> str:
        return END if token in stops else visible(stream.lm.tokenizer.decode([token]))

    looks: list[Look] = []
    seen: dict[int, int] = {}  # position: outlined since
    held: dict[int, Look] = {}  # position: its token
    before = 0
    for step in stream:
        now, (commit, scope, back) = step.forwards, _marks(step)
        for number, at in enumerate(positions):
            if scope[at] and number not in held:
                seen.setdefault(number, before)
            elif number in seen:
                looks.append(Look(number, seen.pop(number), before, "f"))
            if commit[at]:
                looks += _ended(seen.pop(number, None), number, now)
                kind = level(float(step.view.stats.logp[0, at].exp()))
                token = word(int(step.view.proposal[0, at]))
                held[number] = Look(number, now, None, "end" if token == END else kind, token)
            if back[at] and number in held:
                looks.append(held.pop(number)._replace(end=now, kind="back"))
        before = now
    canvas = stream.decoding.canvas
    final, masked = canvas.tokens[0].tolist(), canvas.masked[0].tolist()
    texts = ["" if masked[at] else word(final[at]) for at in positions]
    return looks + list(held.values()), texts


def _ended(since: int | None, position: int, now: int) -> list[Look]:
    return [] if since is None or since == now else [Look(position, since, now, "f")]


def _marks(step: Step) -> tuple[list[bool], list[bool], list[bool]]:
    commit, scope, _, remask, _, edit = step.decision
    commit = commit if edit is None else commit | edit  # both write a token
    back = [False] * commit.shape[1] if remask is None else remask[0].tolist()
    return commit[0].tolist(), scope[0].tolist(), back


def _layout(texts: Sequence[str]) -> list[Box]:
    """Return a box for each token; a line break ends its line."""
    boxes, column, line = [], 0, 0
    for text in texts:
        shown = text.rstrip("\n")
        width = min(max(1, len(shown)), COLUMNS)
        if column + width > COLUMNS:
            column, line = 0, line + 1
        boxes.append(Box(column, line, width))
        column += width
        if text.endswith("\n"):
            column, line = 0, line + 1
    return boxes


def _card(
    head: tuple[str, str],
    looks: Sequence[Look],
    boxes: Sequence[Box],
    *,
    top: int,
    moments: _Moments,
) -> tuple[str, int]:
    """Return one decode with its heading, and its height."""
    high = HIGH * (boxes[-1].line + 1 if boxes else 1) + 38
    width = round(2 * LEFT + WIDE * COLUMNS)
    room = COLUMNS - len(head[1]) - 2
    title = head[0] if len(head[0]) <= room else f"{head[0][: room - 1]}…"
    parts = [
        f"<g transform='translate(6 {top})'>"
        f"<rect class='c' width='{width}' height='{high}' rx='6'/>"
        f"<text class='h' x='{LEFT}' y='20'>{escape(title)}</text>"
        f"<text class='n' x='{width - LEFT}' y='20' text-anchor='end'>{head[1]}</text>"
    ]
    parts += [_box("m", box) for box in boxes]
    for look in sorted(looks, key=lambda one: one.begin):
        parts.append(_drawn(look, boxes[look.position], moments.name))
    return "\n".join([*parts, "</g>\n"]), high


def _box(kind: str, box: Box, more: str = "") -> str:
    x, y = LEFT + WIDE * box.column, 30 + HIGH * box.line
    return (
        f"<rect class='{kind}{more}' x='{x:.1f}' y='{y}' "
        f"width='{WIDE * box.width - 1:.1f}' height='{HIGH - 3}' rx='2'/>"
    )


def _drawn(look: Look, box: Box, name: Callable[[int, int | None], str]) -> str:
    span = name(look.begin, look.end)
    passing = " g" if look.end is not None else ""  # not part of the final answer
    if look.kind == "f":
        return _box("f", box, f" {span}{passing}")
    text = look.text.rstrip("\n")[: box.width] or " "
    x, y = LEFT + WIDE * box.column, 30 + HIGH * box.line + 14
    shade = "" if look.kind == "end" else _box(look.kind, box)
    faint = " class='end'" if look.kind == "end" else ""
    return (
        f"<g class='{span}{passing}'>{shade}<text x='{x:.1f}' y='{y}' xml:space='preserve'"
        f" textLength='{WIDE * len(text):.1f}'{faint}>{escape(text)}</text></g>"
    )
