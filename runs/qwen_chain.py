"""Make the adapted Qwen and its tables in one go, on a GPU that is at hand for minutes.

    setsid python runs/qwen_chain.py run --original qwen.gguf --minutes 26 > chain.log 2>&1 &
    python runs/qwen_chain.py wait --minutes 9 --pack out

To train longer, in two parts, give the second one the texts and the weights of the first:

    python runs/qwen_chain.py run --original qwen.gguf --train-minutes 20
    python runs/qwen_chain.py run --original qwen.gguf --train-minutes 12 --texts pairs.jsonl.gz \
      --start-from first/model

`run` writes texts, measures the original, trains, and runs the tables `qwen` of runs/tables.toml
until the time is up. Functions are collected and checked, and the rows of training made, beside
the work of the GPU. A step that is done is skipped when you run it again. A step that fails or
takes too long ends, and the steps that do not need its files go on. `scratch/chain/status` has one
line for every event, and a file for the output of every step.

`wait` prints the status when the chain has ended or the minutes are up, and packs what there is:
the results and answers of the tables, the curve of training, the scores and the texts.

`--small` takes a few texts, steps and items, to try the chain with any small checkpoint.
"""

from __future__ import annotations

import argparse
import gzip
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import experiments

ROOT = Path(__file__).parents[1]
HOME = Path("scratch") / "chain"
STATUS, ENDED = "status", "ended"
TEXTS, MODEL = Path("texts"), Path("qwen")
TRAINING = 9.0  # minutes, without compilation
GRACE = 20.0  # seconds that a stopped step has to end
POLL = 0.5  # seconds


class Step(NamedTuple):
    """A command, what it waits for, and what it needs."""

    name: str
    command: Sequence[str]
    minutes: float  # it is stopped after these
    after: Sequence[str] = ()  # steps that must have ended, done or not
    delay: float = 0.0  # minutes after these steps, or after the start
    needs: Path | None = None  # a file without which it is skipped
    again: bool = False  # it runs again in every run, because it continues by itself


def plan(given: argparse.Namespace) -> list[Step]:
    """Return all steps. The tables get the minutes that are left when they begin."""
    original, small, options = given.original, given.small, given.options
    texts = [sys.executable, "runs/qwen_texts.py"]
    out = ["--out", str(TEXTS)]
    write = ["write", "--original", original, *out, "--minutes", "0.2" if small else "3"]
    score = ["score", *out, "--task", "gsm8k", "--task", "humaneval"]
    score += ["--items", "4"] if small else ["--items", "400"]
    adapt = [sys.executable, "-m", "wavefront", "train", "adapt", "--config", "runs/qwen.toml"]
    pairs, weights = TEXTS / "pairs.jsonl", MODEL / "model" / "model.safetensors"
    ready = TEXTS / "original" / "original.json"
    adapt += ["--original", original if given.texts else str(ready.parent), "--out", str(MODEL)]
    adapt += ["--texts-from", str(given.texts or pairs)]
    training = 0.2 if small else given.train_minutes
    adapt += ["--train-minutes", f"{training}", "--save-every", "0"]
    if given.start_from:
        adapt += ["--start-from", str(given.start_from)]
    tables = [sys.executable, "runs/experiments.py", "--tables", "qwen", "--minutes", "{left}"]
    more: list[str] = []
    if small:
        write += ["--batch", "16", "--functions", "32", "--answer-tokens", "8"]
        score += ["--answer-tokens", "8"]
        adapt += ["--held-out", "16"]
        more = ["--items", "4", "-n", "16", "--batch-size", "4"]
    if small and not options_name_a_gpu(options):
        adapt += ["--tokens-per-step", "512"]
    # Some cores stay free for the process that drives the GPU.
    check = [*texts, "check", *out, "--workers", str(max(1, 5 * (os.cpu_count() or 1) // 8))]
    steps = [
        Step("write", [*texts, *write], 5),
        Step("collect", [*texts, "collect", *out, "--workers", "2"], 3),
        Step(
            "check-early", [*check, "--minutes", "1"], 2, delay=0.1 if small else 1.0, needs=ready
        ),
        Step(
            "check",
            [*check, "--minutes", "1"],
            2,
            after=("write", "collect", "check-early"),
            needs=ready,
        ),
        Step("score", [*texts, *score], 2, after=("write",), needs=ready),
        Step(
            "score-long",
            [*texts, *score, *([] if small else ["--answer-tokens", "320"])],
            2,
            after=("score",),
            needs=ready,
        ),
    ]
    before_rows, before_training = ("check",), ("rows", "score-long")
    if given.texts:
        steps, pairs = [], given.texts
        before_rows, before_training = (), ("rows",)
    return [
        *steps,
        Step("rows", [*adapt, "--stage", "rows"], 3, after=before_rows, needs=pairs),
        Step(
            "train",
            [*adapt, "--minutes", f"{training + 2.5}"],
            training + 4,
            after=before_training,
            needs=pairs,
        ),
        Step(
            "tables", [*tables, "--", *options, *more], given.minutes, ("train",), 0, weights, True
        ),
    ]


def options_name_a_gpu(options: Sequence[str]) -> bool:
    """Return whether the options of the tables name a GPU."""
    return any("cuda" in option for option in options)


class Chain:
    """The steps in progress, and the status file."""

    def __init__(self, steps: Sequence[Step], *, minutes: float) -> None:
        self.steps, self.began = steps, time.monotonic()
        self.until = self.began + 60 * minutes
        self.ended: dict[str, float] = {}  # when each step ended
        self.running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        (ROOT / HOME).mkdir(parents=True, exist_ok=True)
        (ROOT / HOME / ENDED).unlink(missing_ok=True)

    def say(self, text: str) -> None:
        """Add a line to the status."""
        line = f"{(time.monotonic() - self.began) / 60:5.1f} min  {text}\n"
        with (ROOT / HOME / STATUS).open("a", encoding="utf-8") as file:
            file.write(line)
        print(line, end="", flush=True)

    def run(self) -> bool:
        """Run all steps; return whether each is done."""
        self.say("the chain starts")
        for step in self.steps:
            if not step.again and self._mark(step).is_file():
                self.say(f"{step.name}: was done before")
                self.ended[step.name] = 0.0
        while len(self.ended) < len(self.steps):
            for step in self.steps:
                if step.name in self.running:
                    self._look_after(step)
                elif step.name not in self.ended and self._is_due(step):
                    self._start(step)
            time.sleep(POLL)
        done = all(self._mark(step).is_file() for step in self.steps)
        self.say("all steps have run" if done else "the chain ends; run it again to continue")
        (ROOT / HOME / ENDED).write_text("")
        return done

    def _mark(self, step: Step) -> Path:
        return ROOT / HOME / f"{step.name}.done"

    def _is_due(self, step: Step) -> bool:
        if any(name not in self.ended for name in step.after):
            return False
        since = max([self.began, *(self.ended[name] for name in step.after)])
        return time.monotonic() - since >= 60 * step.delay or time.monotonic() >= self.until

    def _start(self, step: Step) -> None:
        left = (self.until - time.monotonic()) / 60
        if left <= 0 or (step.needs is not None and not (ROOT / step.needs).exists()):
            why = "the time is up" if left <= 0 else f"{step.needs} is missing"
            self.say(f"{step.name}: skipped, {why}")
            self.ended[step.name] = time.monotonic()
            return
        command = [part.replace("{left}", f"{left:.2f}") for part in step.command]
        with (ROOT / HOME / f"{step.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        self.running[step.name] = process, time.monotonic()
        self.say(f"{step.name}: begins")

    def _look_after(self, step: Step) -> None:
        process, began = self.running[step.name]
        code, minutes = process.poll(), (time.monotonic() - began) / 60
        if code is None:
            if minutes <= step.minutes:
                return
            stop(process)
        del self.running[step.name]
        self.ended[step.name] = time.monotonic()
        if code == 0:
            self._mark(step).write_text(f"{minutes:.2f}\n")
        said = f"exit code {code}" if code else "stopped" if code is None else "done"
        last = (ROOT / HOME / f"{step.name}.log").read_text("utf-8", "replace").strip()
        self.say(f"{step.name}: {said}, {minutes:.1f} minutes | {last.splitlines()[-1:]}"[:400])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a step and the processes that it started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACE)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue


def wait(given: argparse.Namespace) -> None:
    """Wait for the end of the chain, print its status, and pack what there is."""
    until = time.monotonic() + 60 * given.minutes
    ended, status = ROOT / HOME / ENDED, ROOT / HOME / STATUS
    while not ended.is_file() and time.monotonic() < until:
        time.sleep(POLL)
    print(status.read_text("utf-8") if status.is_file() else "The chain has not begun.")
    for log in (ROOT / HOME / "train.log", ROOT / HOME / "tables.log"):
        if log.is_file():
            print(f"--- {log.name}\n" + "\n".join(log.read_text("utf-8").splitlines()[-12:]))
    if given.pack:
        given.pack.mkdir(parents=True, exist_ok=True)
        experiments.pack_results("qwen", experiments.read_list("qwen"), given.pack)
        pack_training(given.pack / "training.tar.gz")
        if (ROOT / TEXTS / "pairs.jsonl").is_file():
            texts = gzip.compress((ROOT / TEXTS / "pairs.jsonl").read_bytes())
            (given.pack / "pairs.jsonl.gz").write_bytes(texts)
    print("The chain has ended." if ended.is_file() else "The chain goes on.", flush=True)


def pack_training(file: Path) -> None:
    """Pack logs, scores, and the model's card and curve."""
    kept = [path for path in sorted((ROOT / HOME).glob("*")) if path.suffix != ".done"]
    kept += sorted((ROOT / TEXTS / "answers").glob("*.jsonl"))
    kept += [ROOT / MODEL / name for name in ("log.jsonl", "facts.json", "adapt.json")]
    kept += [
        path
        for path in sorted((ROOT / MODEL / "model").glob("*"))
        if path.suffix in (".md", ".svg", ".jsonl") or path.name == "config.json"
    ]
    with tarfile.open(file, "w:gz") as archive:
        for path in kept:
            if path.is_file():
                archive.add(path, str(path.relative_to(ROOT)))
    print(f"packed {file.stat().st_size / 1e6:.1f} MB into {file}", flush=True)


def run(given: argparse.Namespace) -> None:
    """Run the steps that are not done."""
    if not Chain(plan(given), minutes=given.minutes).run():
        sys.exit(1)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; what follows `--` are options of the tables."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="run the steps that are not done")
    command.add_argument("--original", required=True, help="checkpoint or GGUF file")
    command.add_argument("--minutes", type=float, default=26.0, help="time for all steps [26]")
    command.add_argument(
        "--train-minutes",
        type=float,
        default=TRAINING,
        metavar="X",
        help=f"of training, without compilation [{TRAINING:g}]",
    )
    command.add_argument(
        "--texts", type=Path, metavar="FILE", help="train on these pairs, and write none"
    )
    command.add_argument(
        "--start-from", type=Path, metavar="DIR", help="weights of an earlier adaptation"
    )
    command.add_argument("--small", action="store_true", help="try the chain with little of all")
    command.set_defaults(act=run)
    command = commands.add_parser("wait", help="wait, print the status, and pack results")
    command.add_argument("--minutes", type=float, default=9.0, help="wait at most so long [9]")
    command.add_argument("--pack", type=Path, metavar="DIR", help="write the results there")
    command.set_defaults(act=wait)
    given = parser.parse_args(arguments[:cut])
    given.options = list(arguments[cut + 1 :])
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command."""
    given = parse(sys.argv[1:] if arguments is None else arguments)
    given.act(given)


if __name__ == "__main__":
    main()
