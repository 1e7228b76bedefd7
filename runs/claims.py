"""Write docs/claims.md: every claim of the paper with what was measured.

    python runs/claims.py

claims.toml lists the claims; docs/results/*/numbers.json has the results. An experiment without
that file counts as not run yet. The script stops if a result has a claim that no entry matches, or
if an entry matches nothing. `from` names a page or several. An entry with `pooled` also uses the
tables of docs/results/ripple, which have the most items of ripple.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from decimal import ROUND_UP, Decimal
from pathlib import Path
from typing import Any, NamedTuple

from wavefront import paper
from wavefront.paper import published
from wavefront.paper.claims import (
    BY_CONSTRUCTION,
    CONFIRMED,
    NO_DIFFERENCE,
    NOT_CONFIRMED,
    NOT_MEASURABLE,
    VERDICTS,
    verdict_word,
)
from wavefront.results.interval import NORMAL

ROOT = Path(__file__).parents[1]
LIST, RESULTS, PAGE = Path(__file__).with_suffix(".toml"), ROOT / "docs/results", "docs/claims.md"
DECIDED = (CONFIRMED, NOT_CONFIRMED)
BIASED = "ripple does not decide between schedules"
FEW = 6  # up to this many results are all shown; beyond that, only those that decide or contradict


class Result(NamedTuple):
    """One measurement of a claim."""

    parts: tuple[str, ...]  # task, canvas, reading of the measure
    shown: str  # the value with its interval
    about: tuple[str, ...]  # unit and items
    verdict: str  # one of VERDICTS
    reason: str = ""  # why it cannot be measured
    other_reading: bool = False  # of how the wave grows
    excluded: float | None = None  # if no difference was found: the size above which one is not

    def under(self, label: str) -> Result:
        """Return the result with another part before its own, such as the model."""
        return self._replace(parts=(label, *self.parts)) if label else self


class Row(NamedTuple):
    """A claim as the page shows it."""

    claim: str
    paper: str
    measured: str
    verdict: str
    by: str


def write() -> None:
    """Write the page, and print the number of claims by verdict."""
    themes = read()
    (ROOT / PAGE).write_text(page(themes), "utf-8")
    count = Counter(verdict_word(row.verdict) for rows in themes.values() for row in rows)
    print(f"{PAGE}: " + ", ".join(f"{count[one]} {one}" for one in VERDICTS))


def read_list() -> dict[str, Any]:
    """Return the list: its opening and its themes."""
    return tomllib.loads(LIST.read_text("utf-8"))


def read(results: Path = RESULTS) -> dict[str, list[Row]]:
    """Return the rows of every theme."""
    found = {name: numbers(name, results) for name in pages()}
    for name, one in found.items():
        if left := unlisted(name, one):
            raise SystemExit(f"{LIST.name} has no entry for claims of {name}: {'; '.join(left)}.")
    return {
        theme["title"]: [row(one, found) for one in theme["claim"]]
        for theme in read_list()["theme"]
    }


def entries() -> list[dict[str, Any]]:
    """Return the claims of the list, without their themes."""
    return [one for theme in read_list()["theme"] for one in theme["claim"]]


def pages() -> list[str]:
    """Return the pages of results: one of every experiment, and others that the list names."""
    named = [name for one in entries() for name in sources(one)]
    return list(dict.fromkeys([*paper.NAMES, *named]))


def sources(entry: dict[str, Any]) -> list[str]:
    """Return the pages that an entry uses."""
    given = entry.get("from", [])
    return [given] if isinstance(given, str) else given


def numbers(name: str, results: Path = RESULTS) -> dict[str, Any]:
    """Return what an experiment found; empty if it was not run."""
    file = results / name / "numbers.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def models_of(found: dict[str, Any]) -> str:
    """Return the models of a page."""
    return ", ".join(found["configuration"]["models"])


def unlisted(name: str, found: dict[str, Any]) -> list[str]:
    """Return the texts of claims that no entry of the list matches."""
    wanted = [one["match"] for one in entries() if name in sources(one) and "match" in one]
    texts = dict.fromkeys(claim["text"] for claim in found.get("claims", []))
    return [text for text in texts if not any(re.fullmatch(one, text) for one in wanted)]


def row(entry: dict[str, Any], found: dict[str, dict[str, Any]]) -> Row:
    """Return an entry of the list with what was found."""
    names = sources(entry)
    place = entry.get("at") or published.place_in_paper(names[-1] if names else "")
    claim = f"{entry['text']}<br>*{place[0].lower()}{place[1:]}*"
    paper = signed(entry.get("paper", "–"))
    if "verdict" in entry:
        return Row(claim, paper, entry["found"], entry["verdict"], entry["by"])
    recorded = [name for name in names if found[name]]
    if not recorded and "pooled" not in entry:
        command = f"not run yet: `wavefront paper run {names[-1]}`"
        return Row(claim, paper, command, NOT_MEASURABLE, "")
    shown = recorded
    if "pooled" in entry:  # ripple's own page of the experiment has fewer items
        shown = [name for name in recorded if models_of(found[name]) != "ripple"]
    results: list[Result] = []
    for name in shown:
        measured = table_results if "table" in entry else claim_results
        label = models_of(found[name]) if len(names) > 1 else ""
        mine = [one.under(label) for one in measured(entry, found[name])]
        if not mine:
            raise SystemExit(f"{name} has nothing for this entry of {LIST.name}: {entry['text']}.")
        results += mine
    links = [f"[{name}](results/{name}/summary.md)" for name in shown]
    if "pooled" in entry:
        results += [one.under("ripple" if shown else "") for one in pooled_results(entry)]
        links.append("[ripple](results/ripple/summary.md)")
    by = ", ".join(links)
    if more := entry.get("more"):
        by = f"{more}<br>{by}"
    return Row(claim, paper, lines(results), combine(results, entry.get("unit", "")), by)


def combine(results: list[Result], unit: str = "") -> str:
    """Combine several places: all must confirm, and a claim that holds in some is not confirmed."""
    own = [one for one in results if not one.other_reading]
    words = {one.verdict for one in own} - {NOT_MEASURABLE}
    if not words:
        return NOT_MEASURABLE
    if words == {NO_DIFFERENCE}:
        largest = max(one.excluded or 0.0 for one in own)
        return f"{NO_DIFFERENCE} {bound(largest, unit)}{_unit_word(unit)}"
    return words.pop() if len(words) == 1 else NOT_CONFIRMED


def _unit_word(unit: str) -> str:
    return " points" if unit.startswith("points") else ""


def pooled_results(entry: dict[str, Any]) -> Iterator[Result]:
    """Yield wave minus block over all tasks of a table of ripple's page, pooled by items.

    The interval adds the variances of the tasks, which have different items. ripple was trained
    with masks shaped like a schedule, so it does not decide between schedules.
    """
    for section, label in entry["pooled"].items():
        rows = ripple_rows(section)
        items = sum(row["n"] for row in rows)
        mean = sum(row["n"] * row["gap"] for row in rows) / items
        variance = sum((row["n"] * row["error"] / items) ** 2 for row in rows)
        half = NORMAL * variance**0.5
        found = {"value": mean, "low": mean - half, "high": mean + half}
        about_it = about(entry["unit"], items)
        yield Result((label,), value(found, entry["unit"]), about_it, NOT_MEASURABLE, BIASED)


def ripple_rows(section: str, results: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the tasks of one table of ripple's page: items, wave minus block, standard error."""
    text = (results / "ripple" / "summary.md").read_text("utf-8")
    part = text.partition(f"#### {section}\n")[2].partition("\n#### ")[0]
    number = r"([+-]?[\d.]+)"
    pattern = rf"^\| \w+ \| (\d+) \| \d+ \| {number} \| {number} \| {number} \| {number} "
    pattern += rf"\[{number}, {number}\] \|$"
    rows = [
        {
            "n": int(items),
            "gap": float(wave) - float(block),
            "error": (float(high) - float(low)) / (2 * NORMAL),
        }
        for items, _, block, wave, _, low, high in re.findall(pattern, part, re.MULTILINE)
    ]
    if not rows:
        raise SystemExit(f"docs/results/ripple/summary.md has no table {section!r}.")
    return rows


def claim_results(entry: dict[str, Any], found: dict[str, Any]) -> Iterator[Result]:
    """Yield the claims of an experiment that an entry matches."""
    only, unit = entry.get("only", ""), entry.get("unit", "")
    left_out = {only} if entry.get("strategies") else {only, "wave"}
    for claim in found["claims"]:
        match = re.fullmatch(entry["match"], claim["text"])
        if match is None or only not in claim["where"]:
            continue
        parts = places(claim["where"], found["configuration"]["models"])
        word, _, reason = claim["verdict"].partition(": ")
        excluded = word.removeprefix(NO_DIFFERENCE) if word.startswith(NO_DIFFERENCE) else ""
        yield Result(
            (*match.groups(), *(part for part in parts if part not in left_out)),
            value(claim["found"], unit),
            about(unit, claim["items"]),
            verdict_word(claim["verdict"]),
            reason,
            "accumulate" in claim["where"],
            float(excluded) if excluded else None,
        )


def places(where: str, models: list[str]) -> list[str]:
    """Return where a claim was measured, without the parts that every row has."""
    text = re.sub(r"wavefront\([^)]*\)", "wave", where)
    for model in models if len(models) == 1 else []:
        text = re.sub(rf"(?<!\S){re.escape(model)}(?=[, ]|$)", "", text)
    text = re.sub(r"(?<!,) wave$", "", text.strip())
    parts = [part.strip() for part in re.split(r", (?![^(]*\))", text)]
    return [part for part in parts if part not in ("", "rebuild", "accumulate", "pooled")]


def table_results(entry: dict[str, Any], found: dict[str, Any]) -> Iterator[Result]:
    """Yield cells of a table that are claimed to be below a number or another strategy's cell."""
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
            shown = f"{value(cell, unit, sign=False)} {against}"
            verdict = CONFIRMED if low else NOT_CONFIRMED if high else NO_DIFFERENCE
            excluded = max(abs(cell["high"] - other["low"]), abs(cell["low"] - other["high"]))
            more = (verdict, "", False, excluded)
            yield Result((one["task"],), shown, about(unit, measured["n"]), *more)


def lines(results: list[Result]) -> str:
    """Return every result, with its verdict where they differ, then what all of them share."""
    first = [one for one in results if not one.other_reading]
    count = Counter(one.verdict for one in first)
    shared = [part for part in details(first[0]) if all(part in details(one) for one in first)]
    shown, wanted = [], {*VERDICTS}
    if len(first) > FEW:
        shown.append(", ".join(f"{count[one]} {one}" for one in VERDICTS if count[one]))
        few = sum(count[one] for one in DECIDED) <= FEW
        wanted = {*DECIDED} if few else {NOT_CONFIRMED}
    for one in first:
        if one.verdict in wanted:
            shown.append(line(one, shared, with_verdict=len(count) > 1))
        for other in results:
            if other.other_reading and other.parts == one.parts and other.verdict != one.verdict:
                shown.append(f"accumulate: {line(other, [*one.parts, *shared], with_verdict=True)}")
    return "<br>".join([*shown, "; ".join(shared)] if shared else shown)


def details(result: Result) -> list[str]:
    """Return the details of a value: unit, place, number of items, and the reason."""
    *unit, items = result.about
    return [*unit, *result.parts, items, *([result.reason] if result.reason else [])]


def line(result: Result, shared: list[str], *, with_verdict: bool) -> str:
    """Return one measurement, without what all share."""
    label = ", ".join(part for part in result.parts if part not in shared)
    more = [part for part in details(result) if part not in (*shared, *result.parts)]
    text = "; ".join([f"{label}: {result.shown}" if label else result.shown, *more])
    if not with_verdict or result.reason in more:  # the reason says why there is no verdict
        return text
    if result.excluded is None:
        return f"{text}: {result.verdict}"
    return f"{text}: {result.verdict} {bound(result.excluded, unit_of(result))}"


def unit_of(result: Result) -> str:
    """Return the unit of a result, or nothing."""
    return "".join(result.about[:-1])


def value(found: Any, unit: str, *, sign: bool = True) -> str:
    """Return a number with its interval, with enough digits to show that an interval excludes 0."""
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


def bound(size: float, unit: str) -> str:
    """Return a size above which no difference was found, rounded up."""
    number, *sign = value(size, unit, sign=False).split()
    rounded = Decimal(str(size)).quantize(Decimal(number), ROUND_UP)
    return " ".join([str(rounded), *sign])


def about(unit: str, items: int) -> tuple[str, ...]:
    """Return the unit of a number and the number of items."""
    return (
        *([unit] if unit not in ("", "%") else []),
        "1 item" if items == 1 else f"{items} items",
    )


def signed(text: str) -> str:
    """Replace hyphens before digits with minus signs."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", text)


def page(themes: dict[str, list[Row]], results: Path = RESULTS) -> str:
    """Return the page as Markdown."""
    rows = [one for theme in themes.values() for one in theme]
    waiting = sum(one.measured.startswith("not run yet") for one in rows)
    later = [f"{waiting} of them wait for an experiment that was not run yet.\n"] if waiting else []
    apart = sum(verdict_word(one.verdict) == BY_CONSTRUCTION for one in rows)
    title = f"## {len(rows) - apart} claims, and {apart} that hold by construction\n"
    parts = [read_list()["opening"], title, *counts(themes), "", *later]
    for title, theme in themes.items():
        parts.append(f"## {title}\n")
        parts += ["| claim | in the paper | here | verdict |", "|---|---|---|---|"]
        for one in theme:
            here = "<br>".join(filter(None, (one.measured, one.by)))
            parts.append(f"| {one.claim} | {one.paper} | {here} | **{one.verdict}** |")
        parts.append("")
    return "\n".join([*parts, "## What was run\n", *commands(results)]) + "\n"


def counts(themes: dict[str, list[Row]]) -> list[str]:
    """Return the table of verdicts by theme."""
    names = [f"{one} x" if one == NO_DIFFERENCE else one for one in VERDICTS]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(VERDICTS) + 1) + "|"]
    for title, rows in themes.items():
        found = Counter(verdict_word(row.verdict) for row in rows)
        linked = f"[{title}](#{re.sub('[^a-z ]', '', title.lower()).replace(' ', '-')})"
        lines.append(f"| {linked} | " + " | ".join(str(found[v] or "") for v in VERDICTS) + " |")
    total = Counter(verdict_word(row.verdict) for rows in themes.values() for row in rows)
    return [*lines, "| **all** | " + " | ".join(f"**{total[v]}**" for v in VERDICTS) + " |"]


def commands(results: Path) -> list[str]:
    """Return the table of experiments with command, commit and machine."""
    lines = ["| experiment | command | commit | on |", "|---|---|---|---|"]
    for name in pages():
        if found := numbers(name, results).get("configuration"):
            on = f"{found['device']}, {found['dtype']}"
            linked = f"[{name}](results/{name}/summary.md)"
            lines.append(f"| {linked} | `{found['command']}` | `{found['commit']}` | {on} |")
        elif name in paper.NAMES:
            lines.append(f"| {name} | not run yet: `wavefront paper run {name}` | | |")
    return lines


if __name__ == "__main__":
    write()
