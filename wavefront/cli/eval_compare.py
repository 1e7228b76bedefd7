"""`wavefront diff`, `wavefront explain` and `wavefront merge`: runs beside one another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli.eval_tables import percent, verdict
from wavefront.cli.evaluate import progress_bar
from wavefront.cli.options import DATA, PlainOptions, option
from wavefront.cli.output import say, say_json
from wavefront.core.errors import OptionError

if TYPE_CHECKING:
    from wavefront.evaluation.divergence import CommitView, Divergence
    from wavefront.evaluation.paired import ChangedItem, RunComparison

DIFF_EXAMPLES = """\
Examples
wavefront diff runs/two/gsm--block runs/two/gsm--wavefront
wavefront diff old new --common --json
"""
EXPLAIN_EXAMPLES = """\
Examples
wavefront explain runs/two/gsm--block runs/two/gsm--wavefront
wavefront explain old new --most 3
"""
MERGE_EXAMPLES = """\
Examples
wavefront merge part0 part1 part2 part3 --out runs/gsm
"""
First = Annotated[Path, typer.Argument(metavar="A", help="A run that was graded.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="Another over the same items.")]
Common = Annotated[
    bool, option(None, "", "Compare the items they share, and leave out the others.", "--common")
]
Verdict = Annotated[
    str, option(None, "WORD", "correct (the default), strict or flexible.", "--verdict")
]


def diff(
    first: First,
    second: Second,
    *,
    common: Common = False,
    by: Verdict = "correct",
    most: Annotated[int, option(None, "N", "Changed items to show; by default 20.", "--most")] = 20,
    output: PlainOptions,
) -> None:
    """Compare two runs item by item: is B better than A, and which answers changed?

    The difference comes with a paired bootstrap interval and the exact McNemar test, and the items
    whose verdict changed with both texts, those that got worse first.
    """
    from wavefront.evaluation import compare_runs, open_run

    _check_most(most)
    pair = compare_runs(open_run(first), open_run(second), verdict=by, intersect=common)
    if output.json:
        say_json(pair.as_json())
        return
    say("\n".join(_head(pair)))
    for number, item in enumerate(pair.changed[:most], 1):
        lines = [*_item(number, item), *_texts(item)]
        say("\n".join(["", *lines]))
    _more(len(pair.changed), most)


def explain(
    first: First,
    second: Second,
    *,
    common: Common = False,
    by: Verdict = "correct",
    most: Annotated[int, option(None, "N", "Items to show; by default 5.", "--most")] = 5,
    trust: Annotated[
        bool,
        option(None, "", "Import a strategy from outside because a run names it.", "--trust"),
    ] = False,
    data: Annotated[str, option(None, "DIR", DATA)] = "",
    output: PlainOptions,
) -> None:
    """Say of every changed answer where the two decodes went different ways, and what each saw.

    Of all places that hold other tokens in the end, the one that either decode filled first is
    shown, the most telling items first: those where the two saw a place most differently. Traces of
    the runs are read if there are any; otherwise the items are decoded again, which takes a while.
    """
    from wavefront.evaluation import explain as explain_runs
    from wavefront.evaluation import open_run

    _check_most(most)
    one, two = open_run(first), open_run(second)
    with progress_bar("decoding again", shown=not output.quiet) as show:
        given = {"intersect": common, "trust": trust, "data": data, "progress": show}
        pair, divergences = explain_runs(one, two, verdict=by, **given)
    if output.json:
        say_json({"pair": pair.as_json(), "divergences": [_as_json(one) for one in divergences]})
        return
    say("\n".join(_head(pair)))
    for number, divergence in enumerate(divergences[:most], 1):
        lines = [*_item(number, divergence.item), *_words(divergence), *_texts(divergence.item)]
        say("\n".join(["", *lines]))
    _more(len(divergences), most)


def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="DIR...", help="The shards of a run.")],
    *,
    out: Annotated[Path | None, option(None, "DIR", "Where the run goes.", "--out", "-o")] = None,
    output: PlainOptions,
) -> None:
    """Join the shards of a run, made with --shard, into the run that one process had made."""
    from wavefront.evaluation import merge as merge_runs

    if out is None:
        raise OptionError("Name a directory for the run: --out DIR.")
    run = merge_runs(parts, out)
    if output.json:
        say_json({"run": str(run.folder), "answers": len(run.answers)})
    else:
        say(f"{len(run.answers)} of {run.expected} answers in {run.folder}")


def _check_most(most: int) -> None:
    if most < 0:
        raise OptionError(f"most must be at least 0, not {most}.")


def _head(pair: RunComparison) -> list[str]:
    test: Any = pair.comparison.mcnemar
    lines = [f"{name}: {folder}" for name, folder in zip("AB", pair.names, strict=True)]
    lines += [f"{one.name}: {one.mine} in A, {one.theirs} in B" for one in pair.settings]
    lines += ["", f"{'':10}{'B right':>9}{'B wrong':>9}"]
    lines += [f"{'A right':10}{test.both:>9}{test.first_only:>9}"]
    lines += [f"{'A wrong':10}{test.second_only:>9}{test.neither:>9}", "", verdict(pair)]
    apart = f"{pair.other_texts} of {pair.comparison.count} texts differ"
    left = f"; {pair.left_out} items are in one run only and left out" if pair.left_out else ""
    return [*lines, f"{len(pair.changed)} verdicts changed ({pair.verdict}); {apart}{left}."]


def _item(number: int, item: ChangedItem) -> list[str]:
    way = "right in A, wrong in B" if item.first_right else "wrong in A, right in B"
    read = f"A says {item.first_answer or 'nothing'}, B says {item.second_answer or 'nothing'}"
    return [f"{number}. {item.id}: {way} (answer {item.target}; {read})"]


def _texts(item: ChangedItem) -> list[str]:
    told = []
    for name, text in (("Q", item.prompt), ("A", item.first), ("B", item.second)):
        body = text.strip().replace("\n", "\n      ") or "(nothing)"
        told.append(f"   {name}: {body}")
    return told


def _words(divergence: Divergence) -> list[str]:
    """A divergence as sentences."""
    order = divergence.order
    lines = []
    if order is not None and order < min(
        s.step or order for s in (divergence.first, divergence.second)
    ):
        lines.append(f"   They first do different things at step {order}, which is order only.")
    lines.append(f"   The first token they disagree on is that of place {divergence.slot}:")
    lines += [
        f"   A {_sentence(divergence.first, 'B')}",
        f"   B {_sentence(divergence.second, 'A')}",
    ]
    if not divergence.repeated:
        lines.append("   Decoded again, the texts were not those recorded: another machine?")
    return lines


def _sentence(sight: CommitView, other: str) -> str:
    if sight.token is None or sight.probability is None:
        return "never decided it: its answer had ended."
    told = (
        f"wrote {sight.token!r} at step {sight.step}, p = {sight.probability:.3f}, with "
        f"{sight.known} places of the answer known, seeing {sight.around!r}."
    )
    rest = [f"{text!r} {percent(p)}" for text, p in sight.others if text != sight.token][:3]
    if rest:
        told += f" It could have been {', '.join(rest)}."
    if sight.others:
        seen = "less than any of these" if sight.rival is None else percent(sight.rival)
        told += f" It gave {other}'s token {seen}."
    return told


def _as_json(divergence: Divergence) -> dict[str, Any]:
    return {
        **divergence._asdict(),
        "item": divergence.item._asdict(),
        "first": divergence.first._asdict(),
        "second": divergence.second._asdict(),
    }


def _more(count: int, most: int) -> None:
    if count > most:
        say(f"\n{count - most} more: --most {count} shows them.")
