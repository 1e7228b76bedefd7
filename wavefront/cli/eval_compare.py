"""`wavefront eval show`, `diff`, `explain` and `merge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli import completion
from wavefront.cli.eval_options import OwnTask
from wavefront.cli.eval_tables import describe_pair, percent, quality_rows
from wavefront.cli.options import Data, PlainOptions, flatten_options, option
from wavefront.cli.output import ProgressBar, print_columns, say, say_json
from wavefront.core import spec
from wavefront.core.errors import check_int

if TYPE_CHECKING:
    from wavefront.evaluation.divergence import CommitView, Divergence
    from wavefront.evaluation.paired import ChangedItem, QualityComparison, RunComparison
    from wavefront.evaluation.run import Run
    from wavefront.evaluation.show import AnswerView

SHOW_EXAMPLES = """\
Examples
wavefront eval show runs/first
wavefront eval show runs/two/gsm--block --all
wavefront eval show runs/first --show 3
"""
DIFF_EXAMPLES = """\
Examples
wavefront eval diff runs/two/gsm--block runs/two/gsm--wavefront
wavefront eval diff old new --intersect --json
"""
EXPLAIN_EXAMPLES = """\
Examples
wavefront eval explain runs/two/gsm--block runs/two/gsm--wavefront
wavefront eval explain old new --show 3
"""
MERGE_EXAMPLES = """\
Examples
wavefront eval merge part0 part1 part2 part3 --out runs/gsm
"""
First = Annotated[Path, typer.Argument(metavar="A", help="A graded run.")]
Second = Annotated[
    Path, typer.Argument(metavar="B", help="Another graded run over the same items.")
]
Intersect = Annotated[
    bool, option(None, "", "Compare only the items that both runs have.", "--intersect")
]
Verdict = Annotated[
    str,
    option(
        None,
        "WORD",
        "Grade to compare by: correct, strict or flexible. Default: correct.",
        "--verdict",
        complete=completion.words("correct", "strict", "flexible"),
    ),
]


@flatten_options
def show(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")],
    *,
    every: Annotated[bool, option(None, "", "Print every answer.", "--all")] = False,
    show: Annotated[int, option(None, "N", "Answers to print. Default: 10.", "--show")] = 10,
    output: PlainOptions,
) -> None:
    """Print the answers of a run, wrong answers first.

    For each answer it prints the prompt, the text, the final answer that the grader read from the
    text, and the target. If a judge scored the answers, the least likely ones come first.
    """
    from wavefront.evaluation import open_run
    from wavefront.evaluation.show import answer_views

    check_int("show", show, 0)
    run = open_run(folder)
    views = answer_views(run)
    shown = len(views) if every else show
    if output.json:
        for view in views[:shown]:
            say_json(view._asdict())
        return
    say(_answers_head(run, views))
    for number, view in enumerate(views[:shown], 1):
        body = [*_labelled("prompt", view.prompt), *_labelled("text", view.text)]
        say("\n".join(["", _answer_head(number, view), *body]))
    if len(views) > shown:
        say(f"\n{len(views) - shown} more: --all prints them.")


def _answers_head(run: Run, views: list[AnswerView]) -> str:
    """Return the first line of `eval show`: which run it is, and how many answers are right."""
    from wavefront.core.tree import plural

    line = f"{run.folder}: {plural(len(views), 'answer')} to {run.task_label}"
    line += f" with {spec.label(run.strategy)}"
    graded = [view.correct for view in views if view.correct is not None]
    if graded:
        line += f", {graded.count(True)} right and {graded.count(False)} wrong"
    if run.grades.keys() < run.answers.keys():
        line += f". Not all are graded: run `wavefront eval grade {run.folder}`"
    return f"{line}."


def _answer_head(number: int, view: AnswerView) -> str:
    facts = []
    if view.correct is not None:
        facts.append("right" if view.correct else "wrong")
        facts.append(f"read {view.answer or 'nothing'}, target {view.target}")
    if view.nats is not None:
        facts.append(f"{view.nats:.3f} nats per token")
    if view.finish_reason == "length":
        facts.append("cut at the last position")
    if view.problem:
        facts.append(view.problem.rstrip("."))
    return f"{number}. {view.id}{': ' if facts else ''}{'; '.join(facts)}"


@flatten_options
def diff(
    first: First,
    second: Second,
    *,
    intersect: Intersect = False,
    verdict: Verdict = "correct",
    show: Annotated[int, option(None, "N", "Changed items to print. Default: 20.", "--show")] = 20,
    output: PlainOptions,
) -> None:
    """Compare two runs item by item.

    The command prints the difference with a paired bootstrap interval and the exact McNemar test,
    then both answers of the items whose grade changed. Items that got worse come first. For answers
    that a judge scored, it prints the paired difference of every measure of quality.
    """
    from wavefront.evaluation import compare_quality, compare_runs, open_run

    check_int("show", show, 0)
    one, two = open_run(first), open_run(second)
    if one.judged and two.judged:
        _print_quality(compare_quality(one, two, intersect=intersect), output)
        return
    pair = compare_runs(one, two, verdict=verdict, intersect=intersect)
    if output.json:
        say_json(pair.as_json())
        return
    say("\n".join(_head(pair)))
    for number, item in enumerate(pair.changed[:show], 1):
        lines = [*_item(number, item), *_texts(item)]
        say("\n".join(["", *lines]))
    _print_rest(len(pair.changed), show)


@flatten_options
def explain(
    first: First,
    second: Second,
    *,
    intersect: Intersect = False,
    verdict: Verdict = "correct",
    show: Annotated[int, option(None, "N", "Items to print. Default: 5.", "--show")] = 5,
    strategy: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            "Strategy of a run. Required for your own strategies: a run never imports code. Repeat "
            "for several.",
            "--strategy",
            "-s",
        ),
    ] = None,
    cache: Annotated[
        list[str] | None,
        option(
            None,
            "SPEC",
            "Cache policy of a run. Required for your own policies. Repeat for several.",
            "--cache",
        ),
    ] = None,
    task: OwnTask = None,
    model: Annotated[
        list[str] | None,
        option(
            None,
            "NAME",
            "Your own model, module:factory, if a run uses one. Repeat for several.",
            "--model",
            "-m",
        ),
    ] = None,
    data: Data = "",
    output: PlainOptions,
) -> None:
    """Show where the two decodes of each changed answer diverged.

    The command prints the first position where the two decodes committed different tokens, and what
    each of them saw there. Items where they disagreed most come first. It reads the traces of the
    runs, or decodes the items again if there are none.
    """
    from wavefront.evaluation import explain as explain_runs
    from wavefront.evaluation import open_run

    check_int("show", show, 0)
    one, two = open_run(first), open_run(second)
    trusted = [spec.resolve(text, "strategies") for text in strategy or []]
    trusted += [spec.resolve(text, "caches") for text in cache or []]
    with ProgressBar("decoding again", shown=not output.quiet) as bar:
        pair, divergences = explain_runs(
            one,
            two,
            verdict=verdict,
            intersect=intersect,
            trusted=trusted,
            tasks=task or (),
            models=model or (),
            data=data,
            progress=bar.update,
        )
    if output.json:
        say_json({"pair": pair.as_json(), "divergences": [_as_json(one) for one in divergences]})
        return
    say("\n".join(_head(pair)))
    for number, divergence in enumerate(divergences[:show], 1):
        lines = [
            *_item(number, divergence.item),
            *_divergence(divergence),
            *_texts(divergence.item),
        ]
        say("\n".join(["", *lines]))
    _print_rest(len(divergences), show)


@flatten_options
def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="DIR...", help="All shards of a run.")],
    *,
    out: Annotated[Path, option(None, "DIR", "Directory for the merged run.", "--out", "-o")],
    output: PlainOptions,
) -> None:
    """Merge the shards of a run, made with --shard, into one run."""
    from wavefront.evaluation import merge as merge_runs

    run = merge_runs(parts, out)
    if output.json:
        say_json({"run": str(run.folder), "answers": len(run.answers)})
    else:
        say(f"{len(run.answers)} of {run.expected} answers in {run.folder}")


def _print_quality(pair: QualityComparison, output: PlainOptions) -> None:
    """Print the difference of every measure, in pairs."""
    if output.json:
        say_json(pair.as_json())
        return
    say("\n".join([*_names(pair), ""]))
    print_columns(("measure", "A", "B", "B - A", "95 %"), quality_rows(pair))
    say(f"\n{pair.other_texts} of {pair.count} texts differ{_left_out(pair)}.")


def _names(pair: RunComparison | QualityComparison) -> list[str]:
    lines = [f"{name}: {folder}" for name, folder in zip("AB", pair.names, strict=True)]
    short = [spec.short(strategy, "strategies") for strategy in pair.strategies]
    for one in pair.settings:
        if one.name == "options.strategy" and short[0] != short[1]:
            one = one._replace(mine=repr(short[0]), theirs=repr(short[1]))
        lines.append(f"{one.name}: {one.mine} in A, {one.theirs} in B")
    return lines


def _left_out(pair: RunComparison | QualityComparison) -> str:
    return f"; {pair.left_out} items are in one run only and left out" if pair.left_out else ""


def _head(pair: RunComparison) -> list[str]:
    from wavefront.core.tree import plural

    test: Any = pair.comparison.mcnemar
    lines = [*_names(pair), "", f"{'':10}{'B right':>9}{'B wrong':>9}"]
    lines += [f"{'A right':10}{test.both:>9}{test.first_only:>9}"]
    lines += [f"{'A wrong':10}{test.second_only:>9}{test.neither:>9}", "", describe_pair(pair)]
    apart = f"{pair.other_texts} of {pair.comparison.count} texts differ"
    changed = f"{plural(len(pair.changed), 'verdict')} changed ({pair.verdict}); "
    return [*lines, f"{changed if pair.changed else ''}{apart}{_left_out(pair)}."]


def _item(number: int, item: ChangedItem) -> list[str]:
    way = "right in A, wrong in B" if item.first_right else "wrong in A, right in B"
    read = f"A says {item.first_answer or 'nothing'}, B says {item.second_answer or 'nothing'}"
    return [f"{number}. {item.id}: {way} (answer {item.target}; {read})"]


def _texts(item: ChangedItem) -> list[str]:
    lines = []
    for name, text in (("Q", item.prompt), ("A", item.first), ("B", item.second)):
        lines += _labelled(name, text)
    return lines


def _labelled(name: str, text: str) -> list[str]:
    """Return a text after its name, with its lines in one column."""
    body = text.strip().replace("\n", "\n" + " " * (len(name) + 5)) or "(nothing)"
    return [f"   {name}: {body}"]


def _divergence(divergence: Divergence) -> list[str]:
    """Describe where two decodes diverged."""
    order = divergence.order
    lines = []
    if order is not None and order < min(
        s.step or order for s in (divergence.first, divergence.second)
    ):
        lines.append(f"   They first differ at step {order}, but only in the order of positions.")
    lines.append(f"   The first position with different tokens is {divergence.slot}:")
    lines += [
        f"   A {_sentence(divergence.first, 'B')}",
        f"   B {_sentence(divergence.second, 'A')}",
    ]
    if not divergence.repeated:
        lines.append("   The new decodes differ from the recorded texts. Was this another machine?")
    return lines


def _sentence(sight: CommitView, other: str) -> str:
    if sight.token is None or sight.probability is None:
        return "never decoded it: its answer had ended."
    text = (
        f"wrote {sight.token!r} at step {sight.step}, p = {sight.probability:.3f}, with "
        f"{sight.known} positions decoded, in the context {sight.around!r}."
    )
    rest = [f"{text!r} {percent(p)}" for text, p in sight.others if text != sight.token][:3]
    if rest:
        text += f" Alternatives: {', '.join(rest)}."
    if sight.others:
        seen = "less than any of these" if sight.rival is None else percent(sight.rival)
        text += f" It gave {other}'s token {seen}."
    return text


def _as_json(divergence: Divergence) -> dict[str, Any]:
    return {
        **divergence._asdict(),
        "item": divergence.item._asdict(),
        "first": divergence.first._asdict(),
        "second": divergence.second._asdict(),
    }


def _print_rest(count: int, shown: int) -> None:
    if count > shown:
        say(f"\n{count - shown} more: --show {count} prints them.")
