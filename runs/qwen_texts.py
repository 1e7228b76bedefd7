"""Let an instruction-tuned model write texts for `train adapt`: mathematics and Python functions.

    python runs/qwen_texts.py write --original qwen.gguf --out texts --minutes 9
    python runs/qwen_texts.py collect --out texts
    python runs/qwen_texts.py check --out texts --minutes 3
    python runs/qwen_texts.py score --out texts --task gsm8k --items 400

`write` samples answers to the training questions of GSM8K and MATH, after worked examples, and
keeps those with the right result. It also samples small functions with a docstring and examples.
Run it again to continue.

`collect` takes functions with a docstring from the installed Python packages
(`package_functions.py`). They are not collected a second time.

`check` runs the examples of the functions in the sandbox and writes `pairs.jsonl` for `wavefront
train adapt --texts-from`. A function that passes examples becomes pairs with the prompts of
HumanEval and of MBPP; the examples that it fails are left out. A function that passes none is
kept with its description alone, and so are functions that did not run in time or without a
sandbox. The functions of packages, the answers of the training files of GSM8K, MATH and MBPP, and
problems of GSM8K with other numbers are added. You can run `check` while `write` still runs, and
again at the end: it runs every function once.

`score` measures how many test items the original itself solves, with the prompts of evaluation.

The benchmarks' data files come from WAVEFRONT_DATA or `--data`. No test item is used; `train adapt
--exclude` checks this again.
"""

from __future__ import annotations

import argparse
import ast
import doctest
import json
import os
import random
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import number_variants
import package_functions

from wavefront.core.errors import OptionError, RunError, WavefrontError
from wavefront.results.interval import wilson_share
from wavefront.storage.read_file import parse_json, read_lines
from wavefront.storage.write_file import write_text
from wavefront.tasks import load, sandbox
from wavefront.tasks.base import Ask, Sample, paper_prompt
from wavefront.tasks.benchmarks import gsm8k, mbpp
from wavefront.tasks.grading.program import parse_or_none

if TYPE_CHECKING:
    from wavefront.train.original import Original
    from wavefront.train.sampling import Writer

SHOTS = 4
MAX_ANSWER = 192  # tokens of a sampled answer
MAX_QUESTION = 800  # characters; a batch takes the time and memory of its longest prompt
QUESTIONS = {"gsm8k": 1, "math": 0}  # answers sampled per training question; few are right
CHUNK = 256  # texts that a process grades at once
FUNCTIONS = 36_864  # functions to sample
VERBS = """
add all any average best build capitalize check clean closest collect combine common compare
compress convert count cumulative decode decrease difference digits distinct double drop encode
even expand extract fill filter find first flatten format frequency get group has increase index
insert interleave intersect invert is join largest last length longest make map match max mean
median merge min mirror missing most move multiply next nth number odd pad pair partition pick
prefix previous product rank reduce remove repeat replace reverse rotate running search second
select shift shortest shuffle sign smallest sort split square strip sum swap take total
transform trim truncate union unique update validate weave zip
"""
NOUNS = """
age amounts anagram angle area array average balance bits blocks brackets bytes calendar cells
character characters chunks coins column columns consonants coordinates cost counts cube dates
days decimal dictionary digit digits discount distance divisors duplicates elements email
factorial factors fibonacci file_name fraction gap grade grid hex hours increments integers
interval intervals inventory keys latitude letters lines list lists lowercase matrix median
message minutes money multiples name names neighbors number numbers odds order pairs palindrome
parentheses password path peak percentage perimeter permutations phone points polygon positions
price primes products queue range ranges ratio records rectangle remainder roman rows salary
scores seconds segments sentence sequence series shapes signs slope spaces squares stack steps
string strings subsets substring sums symbols table tags temperature text times title tokens
triangle tuples url values version vowels weekday weights word words years zeros
"""
EXAMPLES = '''from typing import Dict, List, Optional, Tuple


def count_vowels(text: str) -> int:
    """Return how many vowels the text has.

    >>> count_vowels("Hello")
    2
    >>> count_vowels("sky")
    0
    """
    return sum(1 for letter in text.lower() if letter in "aeiou")


def split_by_sign(numbers: List[int]) -> Tuple[List[int], List[int]]:
    """Split the numbers into those below zero and the others. Keep their order.

    >>> split_by_sign([3, -1, 0, -7])
    ([-1, -7], [3, 0])
    >>> split_by_sign([])
    ([], [])
    """
    negative, others = [], []
    for number in numbers:
        if number < 0:
            negative.append(number)
        else:
            others.append(number)
    return negative, others


'''
TRIVIAL = {"[]", "{}", "()", "''", "0", "0.0", "True", "False", "None", "set()"}
# Tries every example, and raises an error whose name has the numbers of those that pass.
TRY_EACH = """
_passed = ["passed"]
for _number, _test in enumerate({tests!r}):
    try:
        exec(_test)
    except BaseException:
        continue
    _passed.append(str(_number))
raise type("_".join(_passed), (Exception,), {{}})
"""
TYPES, MODULES = package_functions.TYPES, package_functions.MODULES
IMPORTS = f"from typing import {', '.join(TYPES)}\n\n\n"
REAL = "real"  # the parts with functions of packages


class Pair(NamedTuple):
    """A prompt as evaluation asks it, and an answer."""

    prompt: str
    answer: str


class Request(NamedTuple):
    """A text that the original continues, without a chat template, and the item it belongs to."""

    text: str
    item: Any


class Kind(Protocol):
    """A kind of texts: what to ask, and what to keep."""

    name: str
    count: int  # texts to sample
    stop: str  # the token that ends a text, if it has one
    temperature: float

    def request(self, number: int) -> Request: ...
    def keep(self, request: Request, text: str) -> dict[str, Any] | None: ...


class Questions:
    """The training questions of a benchmark, answered after worked examples.

    A small model follows the examples only as plain text. In a chat it answers in its own words,
    or answers the question of an example.
    """

    stop = "\n\n"
    temperature = 0.5  # few results are right, and fewer at a higher one

    def __init__(self, name: str, times: int, data: str) -> None:
        self.name, self.data, self.task = name, data, load(name)
        plain, asked, alone = (
            self.task.items(ask)
            for ask in (
                Ask(split="train", style="bare", data=data),
                Ask(split="train", shots=SHOTS, data=data),
                Ask(split="train", data=data),
            )
        )
        # All requests begin with the worked examples, whose answers could be copied.
        examples = asked[-1].prompt.partition(plain[-1].prompt)[0]
        self.items = [
            (request, item)
            for question, request, item in zip(plain, asked, alone, strict=True)
            if len(item.prompt) <= MAX_QUESTION and question.prompt not in examples
        ]
        self.count = times * len(self.items)

    def request(self, number: int) -> Request:
        asked, alone = self.items[number % len(self.items)]
        return Request(asked.prompt, item=alone)

    def keep(self, request: Request, text: str) -> dict[str, Any] | None:
        item: Sample = request.item
        answer = text.split("\nQ:")[0].strip()
        right = self.task.grade(item, answer).strict
        return {"prompt": item.prompt, "answer": answer} if right else None

    def worked(self) -> Iterator[Pair]:
        """Return the answers of the data file."""
        return (Pair(alone.prompt, alone.answer) for _, alone in self.items)

    def renumbered(self, times: int) -> Iterator[Pair]:
        """Return the problems of GSM8K with other numbers, up to `times` for each."""
        if not isinstance(self.task, gsm8k.Gsm8k):
            return
        rows = self.task.read(gsm8k.FILES["train"], Ask(data=self.data))
        for _, alone in self.items:
            row = rows[int(alone.id.rpartition("/")[2])]
            for question, answer in number_variants.variants(row["question"], row["answer"], times):
                yield Pair(alone.prompt.replace(row["question"], question), answer)


class Functions:
    """Small functions with a docstring and examples, written from a name."""

    name = "functions"
    stop = ""
    temperature = 0.8

    def __init__(self, count: int) -> None:
        self.count = count

    def request(self, number: int) -> Request:
        rng = random.Random(number)
        name = f"{rng.choice(VERBS.split())}_{rng.choice(NOUNS.split())}"
        return Request(f"{EXAMPLES}def {name}(", item=name)

    def keep(self, request: Request, text: str) -> dict[str, Any] | None:
        found = read_function(f"def {request.item}({text}")
        return None if found is None else {"code": found.code}


class Function(NamedTuple):
    """A function with a docstring: its source, in parts."""

    name: str
    stub: str  # signature and docstring, with a line end
    body: str
    summary: str
    examples: tuple[tuple[str, str], ...]  # expression and its printed value

    @property
    def code(self) -> str:
        return self.stub + self.body

    @property
    def plain(self) -> str:
        """The function without its docstring."""
        head = self.stub.split('"""', 1)[0].split("'''", 1)[0].rstrip()
        return f"{head}\n{self.body}"

    def tests(self) -> str:
        """Return a program that tries the examples; see `TRY_EACH`."""
        tests = [f"assert repr({call}) == {value!r}" for call, value in self.examples]
        return TRY_EACH.format(tests=tests)

    def keeping(self, numbers: Sequence[int]) -> Function | None:
        """Return the function with only these examples; None if they say too little of it."""
        if len(numbers) == len(self.examples):
            return self
        if all(self.examples[n][1] in TRIVIAL for n in numbers):
            return None
        return read_function(f"{self._stub_keeping(numbers)}{self.body}\n#")

    def _stub_keeping(self, numbers: Sequence[int]) -> str:
        """Return the stub with only these examples, or with all if their lines are not known."""
        lines, said = self.stub.split("\n"), find_docstring(self.stub)
        if said is None:
            return self.stub
        parsed = doctest.DocTestParser().get_examples(said.text)
        for number in reversed(range(len(parsed))):
            if number not in numbers:
                one = parsed[number]
                length = one.source.count("\n") + one.want.count("\n")
                first = said.line + one.lineno
                del lines[first : first + length]
        return "\n".join(lines)

    @property
    def imports(self) -> str:
        """The imports that the function needs."""
        used = package_functions.global_names(self.code)
        lines = [f"import {name}" for name in sorted(used & MODULES)]
        if names := sorted(used & set(TYPES)):
            lines.append(f"from typing import {', '.join(names)}")
        return "\n".join([*lines, "\n\n"]) if lines else ""

    def prompt(self, stub: str) -> str:
        """Return the prompt of HumanEval for a stub, with the imports that the function needs."""
        # Without imports, prompts of HumanEval begin with line breaks, most of them with one.
        before = self.imports or ("\n", "\n", "\n\n", "")[len(self.code) % 4]
        return paper_prompt("humaneval", before + stub)

    def as_written(self) -> Pair:
        """Return the pair of a function with its whole docstring."""
        return Pair(self.prompt(self.stub), self.body)

    def without_examples(self) -> Pair:
        """Return the pair of a function whose examples are wrong: from its description alone."""
        stub = re.sub(r'\n\s*\n(\s*""")', r"\n\1", self._stub_keeping([]))
        return Pair(self.prompt(stub), self.body)

    def pairs(self) -> Iterator[Pair]:
        """Return the pairs that teach this function: with all examples, with one, by tests."""
        for number in range(len(self.examples)):
            one = self.keeping([number])
            if one is not None and one is not self:
                yield Pair(self.prompt(one.stub), self.body)
                break
        yield self.as_written()
        tests = [f"assert {call} == {value}" for call, value in self.examples]
        if len(tests) > 1 and all(parse_or_none(test) for test in tests):
            question = "\n".join([self.summary, "", "It must pass these tests:", *tests])
            yield Pair(paper_prompt("mbpp", question), f"```python\n{self.plain}\n```")


def read_function(text: str) -> Function | None:
    """Return the function at the start of a text; None if it is incomplete or has no examples."""
    lines = text.split("\n")
    end = next(
        (
            n
            for n, line in enumerate(lines)
            if n and line and not line[0].isspace() and line[0] != ")"
        ),
        None,
    )
    if end is None:
        return None  # nothing follows, so it may be cut
    found = parse_function("\n".join(lines[:end]).rstrip())
    if found is None or not found.examples or ">>>" in found.summary:
        return None
    calls = all(is_call(call, found.name) and value for call, value in found.examples)
    return found if calls else None


def parse_function(code: str) -> Function | None:
    """Return a function with a docstring, with or without examples; None if it is no such one."""
    tree = parse_or_none(code)
    if tree is None or len(tree.body) != 1:
        return None
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
        return None
    said = ast.get_docstring(node)
    if not said:
        return None
    try:
        package_functions.global_names(code)
        parsed = doctest.DocTestParser().get_examples(said)
    except (SyntaxError, ValueError):
        return None
    examples = tuple((one.source.strip(), one.want.strip()) for one in parsed)
    summary = " ".join(said.split("\n\n")[0].split())
    first = node.body[0].end_lineno or 0
    body = "\n".join(code.split("\n")[first:]).strip("\n")
    if not body.strip() or is_stub(node.body[1:]):
        return None
    stub = "\n".join(code.split("\n")[:first]) + "\n"
    return Function(node.name, stub, body, summary, examples)


class Docstring(NamedTuple):
    """The text of a docstring, and the line of the source where it starts."""

    text: str
    line: int


def find_docstring(stub: str) -> Docstring | None:
    """Return the docstring of a stub; None if its lines are not those of the source."""
    function = ast.parse(stub).body[0]
    assert isinstance(function, ast.FunctionDef)
    node, text = function.body[0], ast.get_docstring(function, clean=False) or ""
    last = node.end_lineno or node.lineno
    return Docstring(text, node.lineno - 1) if text.count("\n") == last - node.lineno else None


def is_call(source: str, name: str) -> bool:
    """Return whether a source is one expression that calls the function."""
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Name) and call.id == name for call in calls)


def is_stub(body: Sequence[ast.stmt]) -> bool:
    """Return whether a body does nothing: `pass`, `...` or an exception alone."""
    return len(body) == 1 and (
        isinstance(body[0], ast.Pass | ast.Raise)
        or (isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant))
    )


# ---------------------------------------------------------------- write


def write(given: argparse.Namespace) -> None:
    """Sample all parts that are not written yet, until the time is up."""
    from wavefront.text.tokenizer import Tokenizer, prompt_ids
    from wavefront.train.original import read_original, save_original

    began = time.monotonic()
    folder = given.out / "original"
    if not (folder / "original.json").is_file():
        save_original(read_original(given.original), folder)
    parts = given.out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    kinds = all_kinds(given)
    graded: deque[GradedPart] = deque()
    with ProcessPoolExecutor(given.workers, initializer=_start_grading, initargs=(given,)) as pool:
        pool.submit(len, "").result()  # starts the processes before the GPU is used
        original, tokenizer = read_original(folder), Tokenizer.load(folder)
        writer = make_writer(original, given.device)

        def prepare(part: Part) -> list[list[int]]:
            requests = map(part.kind.request, part.numbers)
            return [prompt_ids(tokenizer, one.text, raw=True) for one in requests]

        left = missing_parts(kinds, parts, given.batch)
        for part, prompts in made_ahead(left, prepare):
            if time.monotonic() - began > 60 * given.minutes:
                break
            kind = part.kind
            started = time.monotonic()
            rows = writer.write(
                prompts,
                length=max(map(len, prompts)) + given.answer_tokens,
                temperature=kind.temperature if given.temperature is None else given.temperature,
                seed=part.number,
                stop=tokenizer.encode(kind.stop),
                most=given.answer_tokens,
            )
            texts = original.tokenizer.decode_batch([row.answer.tolist() for row in rows])
            seconds = time.monotonic() - started
            chunks = [
                pool.submit(_keep, kind.name, part.numbers[at : at + CHUNK], texts[at : at + CHUNK])
                for at in range(0, len(texts), CHUNK)
            ]
            # The texts are graded while the next batch is sampled.
            graded.append(GradedPart(part.path, chunks, len(texts), seconds))
            while graded and all(chunk.done() for chunk in graded[0].chunks):
                graded.popleft().save()
        for part in graded:
            part.save()
    if missing_parts(kinds, parts, given.batch):
        print("The time is up. Run the same command again to continue.", flush=True)
        return
    print("All texts are written.", flush=True)


def made_ahead(
    parts: Iterable[Part], make: Callable[[Part], list[list[int]]]
) -> Iterator[tuple[Part, list[list[int]]]]:
    """Yield every part with its prompts, which are made while the part before it is sampled."""
    with ThreadPoolExecutor(1) as pool:
        ahead: deque[tuple[Part, Future[list[list[int]]]]] = deque()
        for part in parts:
            ahead.append((part, pool.submit(make, part)))
            if len(ahead) > 1:
                first, made = ahead.popleft()
                yield first, made.result()
        for first, made in ahead:
            yield first, made.result()


def make_writer(original: Original, device: str) -> Writer:
    """Return the original on a device, in bfloat16 on a GPU."""
    import torch

    from wavefront.models.loader import resolve_device, resolve_dtype
    from wavefront.train.sampling import Writer

    place = resolve_device(device)
    cuda = place.type == "cuda"
    if cuda:
        torch.set_float32_matmul_precision("high")
    return Writer(original, device=place, dtype=resolve_dtype("bfloat16" if cuda else "float32"))


class GradedPart(NamedTuple):
    """A batch of texts that other processes grade."""

    path: Path
    chunks: Sequence[Future[list[dict[str, Any]]]]
    written: int
    seconds: float  # of sampling

    def save(self) -> None:
        """Write what was kept, and print how much it is."""
        kept = [item for chunk in self.chunks for item in chunk.result()]
        write_text(self.path, "".join(json.dumps(item) + "\n" for item in kept), error=RunError)
        print(
            f"{self.path.name}: kept {len(kept)} of {self.written} in {self.seconds:.1f} s",
            flush=True,
        )


_grading: dict[str, Kind] = {}  # the kinds of texts in a process that grades


def _start_grading(given: argparse.Namespace) -> None:
    _grading.update({kind.name: kind for kind in all_kinds(given)})


def _keep(name: str, numbers: Sequence[int], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what is kept of the texts with these numbers."""
    kind = _grading[name]
    found = [kind.keep(kind.request(n), text) for n, text in zip(numbers, texts, strict=True)]
    return [item for item in found if item is not None]


def all_kinds(given: argparse.Namespace) -> list[Kind]:
    """Return the kinds of texts that were asked for."""
    chosen = given.kind or [*QUESTIONS, Functions.name]
    questions = [
        Questions(name, times, given.data) for name, times in QUESTIONS.items() if name in chosen
    ]
    return [*questions, *([Functions(given.functions)] if Functions.name in chosen else [])]


class Part(NamedTuple):
    """A batch of texts of one kind, and the file that what is kept of it goes to."""

    kind: Kind
    number: int
    numbers: range  # of its texts
    path: Path


def missing_parts(kinds: Sequence[Kind], folder: Path, batch: int) -> list[Part]:
    """Return the missing parts. A short run has the same share of every kind."""
    found: list[tuple[float, Part]] = []
    for kind in kinds:
        for number, first in enumerate(range(0, kind.count, batch)):
            numbers = range(first, min(first + batch, kind.count))
            path = folder / f"{kind.name}-{number:04d}.jsonl"
            found.append((first / kind.count, Part(kind, number, numbers, path)))
    found.sort(key=lambda one: one[0])
    return [part for _, part in found if not part.path.exists()]


# ---------------------------------------------------------------- collect


def collect(given: argparse.Namespace) -> None:
    """Write the functions of the installed packages, unless they are there."""
    path = given.out / "parts" / f"{REAL}-0000.jsonl"
    if path.is_file():
        print(f"{path} is there.", flush=True)
        return
    began = time.monotonic()
    found = package_functions.collect(package_functions.installed(), workers=given.workers)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"package": one.package, "code": one.code}) + "\n" for one in found]
    write_text(path, "".join(lines), error=RunError)
    print(
        f"{len(found)} functions of {len({one.package for one in found})} packages, "
        f"{sum(one.alone for one in found)} need only the standard library, "
        f"in {time.monotonic() - began:.0f} s",
        flush=True,
    )


# ---------------------------------------------------------------- check


def check(given: argparse.Namespace) -> None:
    """Run the examples of the functions, and write all pairs once, in a fixed order."""
    parts = given.out / "parts"
    pairs: dict[Pair, None] = {}
    for name, times in QUESTIONS.items():
        kind = Questions(name, times, given.data)
        before = len(pairs)
        for item in read_parts(parts, name):
            pairs[Pair(item["prompt"], item["answer"])] = None
        print(f"{name}: {len(pairs) - before} distinct answers", flush=True)
        for pair in (*kind.worked(), *renumbered_once(kind, given.renumbered, given.out)):
            pairs[pair] = None
    real = [
        found.as_written()
        for item in read_parts(parts, REAL)
        if (found := parse_function(item["code"])) is not None
    ]
    print(f"{REAL}: {len(real)} functions of packages", flush=True)
    functions = {
        (found.name, found.body): found
        for item in read_parts(parts, Functions.name)
        if (found := read_function(item["code"] + "\n#")) is not None
    }
    passed = check_functions(
        list(functions.values()),
        given.out / "checked.jsonl",
        workers=given.workers,
        minutes=given.minutes,
        allow_unsandboxed=given.allow_unsandboxed,
    )
    print(f"functions: {len(passed)} of {len(functions)} pass examples", flush=True)
    taught = {function.name + function.body for function in passed}
    others = [one for one in functions.values() if one.name + one.body not in taught]
    for pair in (
        *(pair for function in passed for pair in function.pairs()),
        *(function.without_examples() for function in others),
        *real,
        *mbpp_pairs(given.data),
    ):
        pairs[pair] = None
    if not pairs:
        raise OptionError(f"{parts} holds no texts; run write first.")
    lines = [json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs]
    random.Random(0).shuffle(lines)
    write_text(given.out / "pairs.jsonl", "".join(lines), error=RunError)
    print(f"wrote {len(lines)} pairs to {given.out / 'pairs.jsonl'}", flush=True)


def renumbered_once(kind: Questions, times: int, folder: Path) -> list[Pair]:
    """Return the problems with other numbers. They are kept, because finding them takes long."""
    path = folder / f"renumbered-{kind.name}-{times}.jsonl"
    if not path.is_file():
        lines = [json.dumps(pair) + "\n" for pair in kind.renumbered(times)]
        write_text(path, "".join(lines), error=RunError)
    lines = read_lines(path, error=RunError)
    return [Pair(*parse_json(line, str(path), error=RunError)) for line in lines]


def mbpp_pairs(data: str) -> Iterator[Pair]:
    """Return the training items of MBPP."""
    for item in load("mbpp").items(Ask(split="train", data=data)):
        yield Pair(item.prompt, f"```python\n{mbpp.tidy(item.answer)}\n```")


def read_parts(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Return the items of all parts of a kind."""
    for path in sorted(folder.glob(f"{name}-*.jsonl")):
        for line in read_lines(path, error=RunError):
            yield parse_json(line, str(path), error=RunError)


def check_functions(
    functions: Sequence[Function],
    known: Path,
    *,
    workers: int,
    minutes: float = float("inf"),
    allow_unsandboxed: bool = False,
) -> list[Function]:
    """Return the functions with the examples that they pass.

    A function that passes only a part of them needs one whose value is not trivial. What was
    checked is kept in `known`. After `minutes`, no further function runs, and none without a
    sandbox.
    """
    done: dict[str, list[int]] = {}
    if known.is_file():
        for line in read_lines(known, error=RunError):
            item = parse_json(line, str(known), error=RunError)
            done[item["code"]] = item["passed"]
    left = [function for function in functions if function.code not in done]
    try:
        sandbox.layers(allow_unsandboxed=allow_unsandboxed)
    except OptionError as error:
        print(f"{len(left)} functions are not checked. {error}", flush=True)
        left = []
    began = time.monotonic()

    def passed(function: Function) -> list[int] | None:
        if time.monotonic() - began > 60 * minutes:
            return None
        return passed_examples(function, allow_unsandboxed=allow_unsandboxed)

    late = 0
    with ThreadPoolExecutor(workers) as pool, known.open("a", encoding="utf-8") as log:
        results = zip(left, pool.map(passed, left), strict=True)
        for number, (function, numbers) in enumerate(results, 1):
            if numbers is None:
                late += 1
                continue
            done[function.code] = numbers
            log.write(json.dumps({"code": function.code, "passed": numbers}) + "\n")
            if number % 500 == 0:
                pace = number / (time.monotonic() - began)
                print(f"checked {number} of {len(left)}, {pace:.0f} per second", flush=True)
    if late:
        print(f"{late} functions are not checked: the time is up", flush=True)
    kept = (function.keeping(done.get(function.code, ())) for function in functions)
    return [function for function in kept if function is not None]


def passed_examples(function: Function, *, allow_unsandboxed: bool = False) -> list[int]:
    """Return the numbers of the examples that a function passes, from one run."""
    verdict = sandbox.check(
        IMPORTS + function.imports + function.code,
        function.tests(),
        names=[function.name],
        timeout=2.0,
        allow_unsandboxed=allow_unsandboxed,
    )
    found = re.fullmatch(r"passed((?:_\d+)+)", verdict.reason)
    return [int(number) for number in found[1].split("_")[1:]] if found else []


# ---------------------------------------------------------------- score


def score(given: argparse.Namespace) -> None:
    """Answer test items greedily with the original, and print the share of right answers.

    The answers are kept, so a second run only grades them, for example where there is a sandbox.
    """
    for name in given.task:
        task = load(name)
        items = list(task.items(Ask(count=given.items, data=given.data)))
        path = given.out / "answers" / f"{name}-{len(items)}-{given.answer_tokens}.jsonl"
        if not path.is_file():
            write_answers(given, items, path)
        lines = read_lines(path, error=RunError)
        texts = [parse_json(line, str(path), error=RunError) for line in lines]
        with ThreadPoolExecutor(given.workers) as pool:
            grades = list(pool.map(task.grade, items, texts))
        right = wilson_share(sum(grade.correct for grade in grades), len(grades))
        low, middle, high = (100 * part for part in (right.low, right.value, right.high))
        print(
            f"{name}: {right.correct} of {right.items} right, {middle:.1f} % "
            f"[{low:.1f}, {high:.1f}], with {given.answer_tokens} tokens",
            flush=True,
        )


def write_answers(given: argparse.Namespace, items: Sequence[Sample], path: Path) -> None:
    """Write the original's greedy answers, one JSON string per line."""
    from wavefront.text.tokenizer import Tokenizer, prompt_ids
    from wavefront.train.original import read_original

    original = read_original(given.out / "original")
    tokenizer = Tokenizer.load(given.out / "original")
    writer = make_writer(original, given.device)
    prompts = [prompt_ids(tokenizer, item.prompt) for item in items]
    texts: list[str] = []
    for at in range(0, len(prompts), given.batch):
        part = prompts[at : at + given.batch]
        limit = max(map(len, part)) + given.answer_tokens
        rows = writer.write(part, length=limit, temperature=0.0, most=given.answer_tokens)
        texts += original.tokenizer.decode_batch([row.answer.tolist() for row in rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(json.dumps(text) + "\n" for text in texts), error=RunError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    helps = {
        write: "sample texts",
        collect: "take functions from the installed packages",
        check: "check the functions, write pairs.jsonl",
        score: "measure the original on test items",
    }
    limit = "stop after this"
    for act, text in helps.items():
        command = commands.add_parser(act.__name__, help=text)
        command.set_defaults(act=act)
        command.add_argument("--out", type=Path, required=True, help="directory of the texts")
        command.add_argument("--data", default="", help="benchmark data [WAVEFRONT_DATA]")
        command.add_argument("--workers", type=int, default=os.cpu_count() or 1)
        if act is check:
            command.add_argument(
                "--renumbered", type=int, default=6, help="variants of a GSM8K problem [6]"
            )
            command.add_argument("--minutes", type=float, default=float("inf"), help=limit)
            command.add_argument(
                "--allow-unsandboxed", action="store_true", help="run functions without a sandbox"
            )
            continue
        if act is collect:
            continue
        batch, tokens = (3072, MAX_ANSWER) if act is write else (512, 128)
        command.add_argument("--batch", type=int, default=batch, help=f"texts at once [{batch}]")
        command.add_argument("--answer-tokens", type=int, default=tokens, help=f"[{tokens}]")
        command.add_argument("--device", default="auto", help="cuda, mps, cpu or auto")
        if act is score:
            command.add_argument("--task", action="append", required=True, help="can be repeated")
            command.add_argument("--items", type=int, help="items of a task [all]")
            continue
        command.add_argument(
            "--kind",
            action="append",
            choices=[*QUESTIONS, Functions.name],
            help="write only this kind of texts; can be repeated [all]",
        )
        command.add_argument("--original", type=Path, required=True, help="checkpoint or GGUF file")
        command.add_argument("--minutes", type=float, default=float("inf"), help=limit)
        command.add_argument("--functions", type=int, default=FUNCTIONS, help=f"[{FUNCTIONS}]")
        command.add_argument("--temperature", type=float, help="[functions: 0.8, questions: 0.5]")
    given = parser.parse_args(arguments)
    try:
        given.act(given)
    except WavefrontError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
