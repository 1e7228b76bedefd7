"""docs/claims.md: every claim of the paper with what was measured, made and never written.

    python runs/claims.py

Claims are listed in claims.toml; what was found comes from docs/results/*/numbers.json. An
experiment without that file counts as not run yet. A claim of a file that no entry of the list is
about stops the script, and so does an entry that finds nothing.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wavefront import paper
from wavefront.paper import _printed

ROOT = Path(__file__).parents[1]
LIST, RESULTS, PAGE = Path(__file__).with_suffix(".toml"), ROOT / "docs/results", "docs/claims.md"
VERDICTS = ("confirmed", "not confirmed", "undecided", "not measurable here")
# What experiments say of a claim, by the first word.
SAID = {"agrees": 0, "disagrees": 1, "undecided": 2, "not": 3}
FEW = 6  # results that are all shown; of more, those that decide, or else those that contradict


class Result(NamedTuple):
    """One measurement of a claim."""

    parts: tuple[str, ...]  # task, canvas, reading of the measure
    shown: str  # the value with its interval
    about: tuple[str, ...]  # unit and items
    verdict: str  # one of VERDICTS
    why: str = ""  # undecided, if the interval does not tell
    second: bool = False  # the other reading of how the wave grows


class Row(NamedTuple):
    """A claim as the page shows it."""

    claim: str
    paper: str
    measured: str
    verdict: str
    by: str


def write() -> None:
    """Make the page, and say how the verdicts fell."""
    themes = read()
    (ROOT / PAGE).write_text(page(themes), "utf-8")
    count = Counter(row.verdict for rows in themes.values() for row in rows)
    print(f"{PAGE}: " + ", ".join(f"{count[one]} {one}" for one in VERDICTS))


def listed() -> dict[str, Any]:
    """The list: its opening and its themes."""
    return tomllib.loads(LIST.read_text("utf-8"))


def read(results: Path = RESULTS) -> dict[str, list[Row]]:
    """The rows of every theme."""
    found = {name: numbers(name, results) for name in paper.names()}
    for name, one in found.items():
        if left := unplaced(name, one):
            raise SystemExit(f"{LIST.name} has no entry for claims of {name}: {'; '.join(left)}.")
    return {
        theme["title"]: [row(one, found) for one in theme["claim"]] for theme in listed()["theme"]
    }


def numbers(name: str, results: Path = RESULTS) -> dict[str, Any]:
    """What an experiment found; nothing when it was not run."""
    file = results / name / "numbers.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def unplaced(name: str, found: dict[str, Any]) -> list[str]:
    """Texts of claims that no entry of the list is about."""
    entries = [one for theme in listed()["theme"] for one in theme["claim"]]
    wanted = [one["match"] for one in entries if one.get("from") == name and "match" in one]
    texts = dict.fromkeys(claim["text"] for claim in found.get("claims", []))
    return [text for text in texts if not any(re.fullmatch(one, text) for one in wanted)]


def row(entry: dict[str, Any], found: dict[str, dict[str, Any]]) -> Row:
    """An entry of the list with what is known of it."""
    name = entry.get("from", "")
    place = entry.get("at") or _printed.where(name)
    claim = f"{entry['text']}<br>*{place[0].lower()}{place[1:]}*"
    paper = signed(entry.get("paper", "–"))
    if "verdict" in entry:
        return Row(claim, paper, entry["found"], entry["verdict"], entry["by"])
    if not found[name]:
        return Row(claim, paper, f"not run yet: `wavefront experiment {name}`", VERDICTS[2], "")
    results = list(tabled(entry, found[name]) if "table" in entry else judged(entry, found[name]))
    if not results:
        raise SystemExit(f"{name} has nothing for this entry of {LIST.name}: {entry['text']}.")
    verdict = together([one.verdict for one in results if not one.second])
    return Row(claim, paper, lines(results), verdict, f"[{name}](results/{name}/summary.md)")


def together(verdicts: list[str]) -> str:
    """Of several places: one that contradicts is enough, confirming takes all."""
    known = [one for one in verdicts if one != VERDICTS[3]]
    for one in (VERDICTS[1], VERDICTS[2]):
        if one in known:
            return one
    return VERDICTS[0] if known else VERDICTS[3]


def judged(entry: dict[str, Any], found: dict[str, Any]) -> Iterator[Result]:
    """The claims of an experiment that an entry is about."""
    only, unit = entry.get("only", ""), entry.get("unit", "")
    left_out = {only} if entry.get("strategies") else {only, "wave"}
    for claim in found["claims"]:
        match = re.fullmatch(entry["match"], claim["text"])
        if match is None or only not in claim["where"]:
            continue
        parts = places(claim["where"], found["configuration"]["models"])
        said, _, why = claim["verdict"].partition(": ")
        margin = re.match(r"the interval reaches beyond (\S+)", why)
        yield Result(
            (*match.groups(), *(part for part in parts if part not in left_out)),
            value(claim["found"], unit),
            about(unit, claim["items"]),
            VERDICTS[SAID[said.split()[0]]],
            f"the margin is ±{margin[1]}" if margin else re.sub("the interval holds 0", "", why),
            "accumulate" in claim["where"],
        )


def places(where: str, models: list[str]) -> list[str]:
    """The parts of where a claim was measured, without what every row has."""
    text = re.sub(r"wavefront\([^)]*\)", "wave", where)
    for model in models if len(models) == 1 else []:
        text = re.sub(rf"(?<!\S){re.escape(model)}(?=[, ]|$)", "", text)
    text = re.sub(r"(?<!,) wave$", "", text.strip())
    parts = [part.strip() for part in re.split(r", (?![^(]*\))", text)]
    return [part for part in parts if part not in ("", "rebuild", "accumulate", "pooled")]


def tabled(entry: dict[str, Any], found: dict[str, Any]) -> Iterator[Result]:
    """A cell of a table, claimed to be below another strategy's or a number, by their intervals."""
    asked, unit = entry["table"], entry.get("unit", "")
    for measured in found["measured"].values():
        rows = measured[asked["title"]]
        for one in rows:
            if one["strategy"] != asked["strategy"]:
                continue
            cell, below = one[asked["column"]], asked["below"]
            other, against = {"low": below, "high": below}, f"against {below}"
            if isinstance(below, str):
                same = (r for r in rows if r["task"] == one["task"])
                other = next(r for r in same if r["strategy"].startswith(below))[asked["column"]]
                against = f"against {below}'s {value(other, unit, sign=False)}"
            low, high = cell["high"] < other["low"], cell["low"] > other["high"]
            told = f"{value(cell, unit, sign=False)} {against}"
            verdict = VERDICTS[0 if low else 1 if high else 2]
            yield Result((one["task"],), told, about(unit, measured["n"]), verdict)


def lines(results: list[Result]) -> str:
    """Every result, with its verdict where they differ, and last what all of them share."""
    first = [one for one in results if not one.second]
    count = Counter(one.verdict for one in first)
    shared = [part for part in told(first[0]) if all(part in told(one) for one in first)]
    shown, wanted = [], {*VERDICTS}
    if len(first) > FEW:
        shown.append(", ".join(f"{count[one]} {one}" for one in VERDICTS if count[one]))
        few = sum(count[one] for one in VERDICTS[:2]) <= FEW
        wanted = {*VERDICTS[:2]} if few else {VERDICTS[1]}
    for one in first:
        if one.verdict in wanted:
            shown.append(line(one, shared, tell=len(count) > 1))
        for other in results:
            if other.second and other.parts == one.parts and other.verdict != one.verdict:
                shown.append(f"accumulate: {line(other, [*one.parts, *shared], tell=True)}")
    return "<br>".join([*shown, "; ".join(shared)] if shared else shown)


def told(result: Result) -> list[str]:
    """What stands beside a value: its unit, where it was measured, of how many, and why not."""
    *unit, items = result.about
    return [*unit, *result.parts, items, *([result.why] if result.why else [])]


def line(result: Result, shared: list[str], *, tell: bool) -> str:
    """A measurement, without what all share."""
    label = ", ".join(part for part in result.parts if part not in shared)
    more = [part for part in told(result) if part not in (*shared, *result.parts)]
    text = "; ".join([f"{label}: {result.shown}" if label else result.shown, *more])
    return f"{text}: {result.verdict}" if tell else text


def value(found: Any, unit: str, *, sign: bool = True) -> str:
    """A number with its interval; if that is clear of 0, with as many digits as show it."""
    if found is None:
        return "no value"
    if isinstance(found, bool):
        return "holds" if found else "does not hold"
    ends = [found["value"], found["low"], found["high"]] if isinstance(found, dict) else [found]
    largest, least = max(map(abs, ends)), min(map(abs, ends))
    digits = 1 if largest >= 2 or unit.startswith(("points", "%")) else 2 if largest >= 0.1 else 3
    clear = min(ends) > 0 or max(ends) < 0
    while clear and least < 0.5 * 10**-digits and digits < 6:
        digits += 1
    text = [signed(f"{one:{'+' if sign else ''}.{digits}f}") for one in ends]
    shown = text[0] if len(text) == 1 else f"{text[0]} [{text[1]}, {text[2]}]"
    return f"{shown} %" if unit == "%" else shown


def about(unit: str, items: int) -> tuple[str, ...]:
    """What a number is in, and of how many."""
    return (
        *([unit] if unit not in ("", "%") else []),
        "1 item" if items == 1 else f"{items} items",
    )


def signed(text: str) -> str:
    """With a minus that is as wide as a plus."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def page(themes: dict[str, list[Row]], results: Path = RESULTS) -> str:
    """The whole page."""
    rows = [one for theme in themes.values() for one in theme]
    waiting = sum(one.measured.startswith("not run yet") for one in rows)
    later = [f"{waiting} of them wait for an experiment that was not run yet.\n"] if waiting else []
    parts = [listed()["opening"], f"## {len(rows)} claims\n", *counts(themes), "", *later]
    for title, theme in themes.items():
        parts.append(f"## {title}\n")
        parts += ["| claim | in the paper | here | verdict |", "|---|---|---|---|"]
        for one in theme:
            here = "<br>".join(filter(None, (one.measured, one.by)))
            parts.append(f"| {one.claim} | {one.paper} | {here} | **{one.verdict}** |")
        parts.append("")
    return "\n".join([*parts, "## What was run\n", *commands(results)]) + "\n"


def counts(themes: dict[str, list[Row]]) -> list[str]:
    """How the verdicts fell, theme by theme."""
    lines = ["| | " + " | ".join(VERDICTS) + " |", "|---" * (len(VERDICTS) + 1) + "|"]
    for title, rows in themes.items():
        found = Counter(row.verdict for row in rows)
        linked = f"[{title}](#{re.sub('[^a-z ]', '', title.lower()).replace(' ', '-')})"
        lines.append(f"| {linked} | " + " | ".join(str(found[v] or "") for v in VERDICTS) + " |")
    whole = Counter(row.verdict for rows in themes.values() for row in rows)
    return [*lines, "| **all** | " + " | ".join(f"**{whole[v]}**" for v in VERDICTS) + " |"]


def commands(results: Path) -> list[str]:
    """Every experiment with its command, commit and machine."""
    lines = ["| experiment | command | commit | on |", "|---|---|---|---|"]
    for name in paper.names():
        if found := numbers(name, results).get("configuration"):
            on = f"{found['device']}, {found['dtype']}"
            linked = f"[{name}](results/{name}/summary.md)"
            lines.append(f"| {linked} | `{found['command']}` | `{found['commit']}` | {on} |")
        else:
            lines.append(f"| {name} | not run yet: `wavefront experiment {name}` | | |")
    return lines


if __name__ == "__main__":
    write()
