"""Benchmarks grade every published answer as right, and wrong or malformed ones as wrong."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from wavefront import tasks
from wavefront.core.errors import MissingExtraError, OptionError
from wavefront.engine.options import ModelProperties, plan
from wavefront.tasks import sandbox
from wavefront.tasks.base import PROCEDURAL, Ask, Sample, paper_prompt
from wavefront.tasks.benchmarks import _data, _hub, mbpp
from wavefront.tasks.benchmarks.bbh import SUBSETS
from wavefront.tasks.benchmarks.countdown import reaches
from wavefront.tasks.grading import maths
from wavefront.tasks.grading.maths import last_boxed

HAS_DATA = "WAVEFRONT_DATA" in os.environ
needs_data = pytest.mark.skipif(not HAS_DATA, reason="WAVEFRONT_DATA is not set")
try:
    HAS_SANDBOX = bool(sandbox.layers())
except OptionError:
    HAS_SANDBOX = False
needs_sandbox = pytest.mark.skipif(not HAS_SANDBOX, reason="no sandbox on this machine")
MALFORMED = ("", " \n", "####", "#### ", "I do not know.", r"\boxed{", r"\boxed{}", "```python\n",
             "\0", "answer is", "The answer is .", "((((", "nan", "{" * 50)  # fmt: skip
CODE = ("humaneval", "mbpp", "mbpp_sanitized")


def items(name: str, **ask) -> list[Sample]:
    return tasks.load(name).items(Ask(**{"style": "bare", **ask}))


def assert_wrong(name: str, pairs: Iterable[tuple[Sample, str]]) -> int:
    """Assert that every answer is graded as wrong, and return how many there are."""
    task, count = tasks.load(name), 0
    for sample, text in pairs:
        grade = task.grade(sample, text)
        verdicts = (grade.correct, grade.strict, grade.flexible)
        assert verdicts == (False, False, False), (sample.id, text, grade)
        count += 1
    return count


def test_registry_lists_every_benchmark() -> None:
    known = tasks.benchmarks()
    assert len(known) == len(set(known)) == 39
    assert {f"bbh_{name}" for name in SUBSETS} <= set(known)
    assert len(SUBSETS) == 27
    assert not set(known) & set(tasks.names())
    for name in known:
        task: Any = tasks.load(name)
        assert task.name == name
        assert task.version
        assert getattr(task, "executes", False) == (name in CODE)
        if name != "wikitext_infill":
            assert "Q-text" in paper_prompt(task.template, "Q-text")


def test_unknown_names_and_options_raise() -> None:
    with pytest.raises(OptionError, match="did you mean 'humaneval'"):
        tasks.load("humanevel")
    with pytest.raises(OptionError, match=r"no option 'cott'.*did you mean 'cot'"):
        tasks.load("bbh_navigate", cott=True)
    with pytest.raises(OptionError, match="subset"):
        tasks.load("bbh_navigate", subset="nothing")
    with pytest.raises(OptionError, match="numbers"):
        tasks.load("countdown_3", numbers=6)
    with pytest.raises(OptionError, match="givens"):
        tasks.load("sudoku_4", givens=3)
    with pytest.raises(OptionError, match="evaluation only"):
        tasks.draw({"gsm8k": 1.0}, seed=0, index=0)


def test_missing_data_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WAVEFRONT_DATA", raising=False)
    for name in tasks.benchmarks():
        with pytest.raises(OptionError, match=r"WAVEFRONT_DATA is not set.*docs/tasks.md"):
            items(name)
        with pytest.raises(OptionError, match=r"none of .*docs/tasks.md"):
            items(name, data=str(tmp_path))


@pytest.fixture
def few(tmp_path: Path) -> str:
    """A folder with a few hand-written files in the published formats."""

    def write(name: str, rows: list[dict]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())

    sums = [
        {"question": f"What is {n} + {n}?", "answer": f"<<{n}+{n}>>{2 * n}\n#### {2 * n}"}
        for n in range(600, 640)
    ]
    write("gsm8k/test.jsonl", sums)
    write("gsm8k/train.jsonl.gz", sums)
    write("math/test.jsonl.gz", [
        {"problem": "Half?", "level": "Level 1", "type": "Algebra", "unique_id": "test/a/1.json",
         "solution": r"It is $\boxed{\frac{1}{2}}$."}])  # fmt: skip
    write("humaneval/HumanEval.jsonl", [{
        "task_id": "HumanEval/0", "entry_point": "twice",
        "canonical_solution": "    return 2 * n\n",
        "prompt": 'import math\n\n\ndef twice(n: int) -> int:\n    """Double it."""\n',
        "test": "def check(candidate):\n    assert candidate(2) == 4\n"
        "    assert candidate(-1) == -2\n",
    }])  # fmt: skip
    write("mbpp/mbpp.jsonl", [
        {"task_id": n, "text": "Add.", "code": "import sys\r\ndef sum(a, b):\r\n  return a + b",
         "test_setup_code": "", "test_list": ["assert sum(1, 2) == 3", "assert sum(0, 0) == 0"],
         "challenge_test_list": []} for n in (2, 3, 4, 11)])  # fmt: skip
    write("planning/cd3_test.jsonl", [{"input": "15,44,79,50", "output": "44-15=29,79-29=50"}])
    write("planning/sudoku_4x4_4.jsonl", [
        {"input": "1000\n0002\n4003\n0000", "output": "1234\n3412\n4123\n2341"}])  # fmt: skip
    write("bbh/x", [])
    rows = [{"input": "Is it?\nOptions:\n- Yes\n- No", "target": "Yes"}]
    (tmp_path / "bbh/navigate.json").write_text(json.dumps({"examples": rows}))
    (tmp_path / "wikitext").mkdir()
    line = " The cat , which is old , sat on the @-@ mat and looked at its long tail . It was . \n"
    (tmp_path / "wikitext/wiki.test.raw").write_text(" = Cats = \n \n" + line)
    return str(tmp_path)


def task_and_item(name: str, few: str, **options) -> tuple:
    task = tasks.load(name, any_data=True, **options)
    extra = {"givens": 4} if name == "sudoku_4" else {}
    task = tasks.load(name, any_data=True, **extra, **options)
    return task, task.items(Ask(data=few, style="bare"))[0]


def test_changed_data_file_raises(few: str) -> None:
    with pytest.raises(OptionError, match=r"is not the published gsm8k/test.jsonl.*any_data=True"):
        items("gsm8k", data=few)


def test_gsm8k_grading(few: str) -> None:
    task, sample = task_and_item("gsm8k", few)
    assert (sample.target, sample.answer) == ("1200", "1200\n#### 1200")
    for text in (sample.answer, "#### 1,200", "so #### $1200.00", "####1200 apples"):
        grade = task.grade(sample, text)
        assert (grade.correct, grade.strict, grade.flexible, grade.how) == (
            True,
            True,
            True,
            "strict",
        )
    for text in ("it is 1,200.", r"\boxed{1200}", "The answer is **1200** of 1300", "$1200"):
        grade = task.grade(sample, text)
        assert (grade.correct, grade.strict, grade.flexible) == (True, False, True), text
    for text in (*MALFORMED, "#### 1201", "1200 or 1", "#### -1200", "#### 12 00", "#### 1200.5"):
        assert not task.grade(sample, text).correct, text


def test_worked_examples_precede_the_question(few: str) -> None:
    task = tasks.load("gsm8k", any_data=True)
    paper = task.items(Ask(data=few, shots=2, count=1))[0].prompt
    assert paper.startswith("You're an expert")
    assert paper.count("\nQ: What is") == 3
    assert paper.count("#### 12") == 2
    assert "<<" not in paper
    assert paper.endswith("?\nA:")
    bare = task.items(Ask(data=few, shots=2, count=1, style="bare"))[0].prompt
    assert bare.startswith("Q: What is 600 + 600?\nA: 1200\n#### 1200\n\nQ: ")
    with pytest.raises(OptionError, match="shots"):
        task.items(Ask(data=few, shots=33))
    with pytest.raises(OptionError, match="has no worked examples"):
        tasks.load("humaneval", any_data=True).items(Ask(data=few, shots=1))
    with pytest.raises(OptionError, match="at most 3"):
        tasks.load("mbpp", any_data=True).items(Ask(data=few, shots=4))
    shown = tasks.load("mbpp", any_data=True).items(Ask(data=few, shots=3))[0].prompt
    assert shown.count("```python\nimport sys\ndef sum(a, b):") == 3


def test_smaller_count_is_a_prefix_of_a_larger_one(few: str) -> None:
    task = tasks.load("gsm8k", any_data=True)
    every = task.items(Ask(data=few))
    assert [item.id for item in every] == [f"gsm8k/test/{n}" for n in range(40)]
    five, nine = (task.items(Ask(data=few, count=n)) for n in (5, 9))
    assert nine[:5] == five
    assert five != every[:5]
    assert task.items(Ask(data=few, count=5, seed=1)) != five
    assert len(task.items(Ask(data=few, count=99))) == 40
    with pytest.raises(OptionError, match="count"):
        task.items(Ask(data=few, count=0))
    with pytest.raises(OptionError, match="split"):
        task.items(Ask(data=few, split="held-out"))


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (r"\boxed{2}", "2"), (r"a \boxed{1} b \boxed{\frac{1}{\sqrt{2}}} c", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed 7$.", "7"), (r"\fbox{a}", "a"), (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{1", None), ("nothing", None), (r"\boxedx{1}", None), (r"\boxed{}", ""),
        (r"\boxed{a\}b}", r"a\}b"), (r"\boxed\frac12", r"\frac"),
    ],
)  # fmt: skip
def test_last_boxed(text: str, held: str | None) -> None:
    assert last_boxed(text) == held


def test_math_grading(few: str) -> None:
    task, sample = task_and_item("math", few)
    assert sample.target == r"\frac{1}{2}"
    for text in (sample.answer, r"\boxed{0.5}", r"\boxed{\dfrac12}", r"\boxed{1/2}", r"\boxed{.50}",
                 r"\boxed{\frac{2}{4}}", r"\boxed{x=\tfrac{1}{2}}",
                 r"\boxed{\frac{1}{2}.}"):  # fmt: skip
        grade = task.grade(sample, text)
        assert (grade.correct, grade.strict, grade.flexible) == (True, True, True), text
    for text in (r"The answer is $\frac12$.", "so it is 1/2", "The answer is 0.5", r"\[ 1/2 \]"):
        grade = task.grade(sample, text)
        assert (grade.correct, grade.strict, grade.flexible) == (True, False, True), text
    for text in (*MALFORMED, r"\boxed{\frac{1}{3}}", r"\boxed{2}", r"\boxed{\frac{1}{2}} \boxed{3}",
                 r"\boxed{1/2, 1/3}", r"\boxed{-\frac12}", r"\boxed{\text{half}}"):  # fmt: skip
        assert not task.grade(sample, text).correct, text


@pytest.mark.parametrize(
    ("target", "answer", "equal"),
    [
        (".5", "5", False),
        (".5", "0.5", True),
        (".5", "The answer is .5.", True),
        ("5", "So x is .5", False),
        ("10,2", "10,002", False),
        ("10002", "10,002", True),
        ("(1,2)", "so $(01, 2)$", True),
    ],
)
def test_leading_points_and_zeros_of_a_number(target: str, answer: str, equal: bool) -> None:
    read = maths.last_expression(answer)
    assert read is not None
    assert maths.are_equal(target, read) is equal


def test_math_grading_works_outside_the_main_thread(few: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    task, sample = task_and_item("math", few)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(task.grade, sample, r"\boxed{\frac{3}{6}}").result().correct
        assert not pool.submit(task.grade, sample, r"\boxed{\frac{4}{6}}").result().correct


@pytest.mark.slow
def test_math_grading_ends_outside_the_main_thread() -> None:
    from concurrent.futures import ThreadPoolExecutor

    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        assert not pool.submit(maths.are_equal, "5", r"\sum_{i=1}^{10^{9}} \frac{1}{i}").result()
    assert time.monotonic() - began < 60


SIGNATURE = "def twice(n):\n    return 2 * n\n"


@needs_sandbox
@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("    return 2 * n\n", True),
        ("    return 2 * n\n\n\nprint(twice(3))\n", True),
        (SIGNATURE, True),
        ("def twice(n):\n    return math.floor(2 * n)", True),  # the prompt's import is there
        (f"Here it is:\n```python\n{SIGNATURE}```\nIt doubles.", False),
        (f"```\n{SIGNATURE}\n```", False),
        (f"```python\n{SIGNATURE}", False),
        ("```python\n    return 2 * n\n```", False),
        ("return 2 * n", False),
        ("m = 2\n    return m * n", False),
        (f"{SIGNATURE}\nThis is the function, isn't it?", False),
        ("    return 2 * n\n\nThis doubles n.", False),
        (f"Sure, the code:\n{SIGNATURE}", False),
        (f"from here on, see:\n{SIGNATURE}", False),
        (
            "def half(n):\n    return n / 2\n\ndef twice(n):\n    return n / half(1)\n\nIt's done.",
            False,
        ),
        ("Yes:\nimport math as m\ndef twice(n):\n    return m.floor(2 * n)\n\nIt's done.", False),
        (f"```python\nprint(1)\n```\nand\n```python\n{SIGNATURE}```", False),
    ],
)
def test_function_is_found_in_the_answer(few: str, text: str, strict: bool) -> None:
    task, sample = task_and_item("humaneval", few)
    grade = task.grade(sample, text)
    assert (grade.correct, grade.strict, grade.flexible) == (True, strict, True), grade
    assert "pid namespace" in grade.layers


@pytest.mark.slow
@needs_sandbox
def test_wrong_functions_fail(few: str) -> None:
    task, sample = task_and_item("humaneval", few)
    for text in (*MALFORMED, "    return n", "    pass", "def other(n): return 2 * n", "return 2 *",
                 "    return 4 if n == 2 else None", "import sys\nsys.exit(0)"):  # fmt: skip
        grade = task.grade(sample, text)
        assert (grade.correct, grade.strict, grade.flexible) == (False, False, False), text


@needs_sandbox
def test_test_that_calls_the_function_by_name_gets_the_published_solution(few: str) -> None:
    task, sample = task_and_item("humaneval", few)
    self_test = sample.extra["tests"].replace("candidate(2) == 4", "candidate(2) == twice(2)")
    sample = replace(sample, extra={**sample.extra, "tests": self_test})
    assert task.grade(sample, "    return 2 * n").correct
    assert not task.grade(sample, "    return 9 if n == 2 else -2").correct


@pytest.mark.slow
@needs_sandbox
def test_solution_may_shadow_a_builtin(few: str) -> None:
    task, sample = task_and_item("mbpp", few)
    assert sample.extra["names"] == ["sum"]
    for text in (sample.answer, "def sum(a, b): return b + a\n[DONE] more", "```\ndef sum(a, b):\n"
                 "  return a + b\n```"):  # fmt: skip
        assert task.grade(sample, text).correct, text
    for text in (*MALFORMED, "def sum(a, b): return a", "sum = sum", "def add(a, b): return a + b"):
        assert not task.grade(sample, text).correct, text


def test_tests_use_the_solution_for_a_built_in_name_only_if_they_test_it() -> None:
    row = {"code": "def len(x): return 3\ndef f(x): return x", "test_list": ["assert len(f([]))"]}
    assert mbpp.sandbox_arguments(row)["names"] == ["f"]
    row = {"code": "def sum(a, b): return a + b", "test_list": ["assert sum(1, 2) == 3"]}
    assert mbpp.sandbox_arguments(row)["names"] == ["sum"]


def test_code_is_not_run_without_a_sandbox(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(line, arguments, **_):
        required = "require-sandbox" in arguments
        return sandbox._Reply({"refused": "no namespaces"} if required else {}, False)

    monkeypatch.setattr(sandbox, "_start", refuse)
    task, sample = task_and_item("humaneval", few)
    with pytest.raises(OptionError, match="allow_unsandboxed=True"):
        task.grade(sample, "    return 2 * n")


def test_countdown_is_graded_by_its_rules(few: str) -> None:
    task, sample = task_and_item("countdown_3", few)
    assert task.grade(sample, sample.answer).strict
    assert task.grade(sample, "79-44=35,35+15=50").strict
    assert task.grade(sample, "79 - 44 = 35, 35 + 15 = 50").strict
    loose = task.grade(sample, "First 79-44=35.\nThen 15+35=50.")
    assert (loose.correct, loose.strict, loose.flexible) == (True, False, True)
    for text in (*MALFORMED, "44-15=29", "44-15=30,80-30=50", "25+25=50",
                 "79-44=35,35+15=50,50+0=50",
                 "44+79=123,123-15=108", "50=50", "1/0=1", "79-44=35,79-35=44"):  # fmt: skip
        assert not task.grade(sample, text).correct, text
    assert reaches("6/4=3/2,3/2*2=3", [6, 4, 2], 3)


def test_sudoku_is_graded_by_its_rules(few: str) -> None:
    task, sample = task_and_item("sudoku_4", few)
    assert task.grade(sample, sample.answer).strict
    loose = task.grade(sample, "The grid:\n1 2 3 4\n3 4 1 2\n4 1 2 3\n2 3 4 1")
    assert (loose.correct, loose.strict, loose.flexible) == (True, False, True)
    for text in (*MALFORMED, "1234\n3412\n4123\n2314", "1234\n3412\n4123", "2134\n3412\n4123\n2341",
                 "1234\n1234\n1234\n1234", "1234\n4312\n3421\n2143",
                 "1000\n0002\n4003\n0000"):  # fmt: skip
        assert not task.grade(sample, text).correct, text


@pytest.mark.parametrize("name", ["countdown_3", "countdown_4", "countdown_5", "sudoku_4"])
def test_hand_written_examples_are_right(name: str) -> None:
    task: Any = tasks.load(name)
    shown = task.examples(Ask())
    assert len(shown) == 3
    for question, answer in shown:
        assert task.grade(Sample("", "", "", "", {"question": question}), answer).strict, answer


def test_bbh_subset(few: str) -> None:
    task, sample = task_and_item("bbh_navigate", few)
    assert sample.id == "bbh_navigate/test/0"
    assert task.grade(sample, "#### Yes").strict
    assert task.grade(sample, "So the answer is yes.").flexible
    assert task.grade(sample, "No, the answer is **Yes**, not No.").flexible
    for text in (*MALFORMED, "#### No", "Yes. No.", "the answer is no. Yes", "#### maybe"):
        assert not task.grade(sample, text).correct, text


def test_wikitext_sentences_are_cut(few: str) -> None:
    task, sample = task_and_item("wikitext", few)
    assert sample.prompt == "The cat, which is old, sat on"
    assert sample.target == "the-mat and looked at its long tail."
    assert task.grade(sample, sample.target).correct
    first = task.grade(sample, "the-mat burned")
    assert (first.correct, first.flexible) == (False, True)
    assert task.grade(sample, "").answer is None
    task, hole = task_and_item("wikitext_infill", few)
    whole = f"{hole.prompt} {hole.target} {hole.extra['suffix']}"
    assert whole == f"{sample.prompt} {sample.target}"
    paper = task.items(Ask(data=few))[0]
    assert paper == hole


def test_presets_are_valid_decoding_options() -> None:
    known = {*tasks.benchmarks(), "bbh", "countdown", "sudoku"}
    model = ModelProperties(mask_id=5, stop_ids=(1, 2), family="llada", vocab_size=100)
    assert set(tasks.presets()) >= {"paper", "llada", "llada-1.5", "dream", "dream-base"}
    for name, covered in tasks.presets().items():
        assert set(covered) <= known
        for task in covered:
            options = tasks.preset(name, task)
            assert 0 <= options.pop("shots") <= 8
            assert plan(options, model).length == options["max_new_tokens"]
    paper = tasks.preset("paper", "bbh_navigate")
    assert (paper["max_new_tokens"], paper["steps"], paper["shots"]) == (1024, 1024, 0)
    assert tasks.preset("llada", "humaneval")["logits_eos_inf"] is True
    assert tasks.preset("dream-base", "countdown_5")["max_new_tokens"] == 32
    with pytest.raises(OptionError, match="preset"):
        tasks.preset("papr", "gsm8k")
    with pytest.raises(OptionError, match="does not cover 'wikitext'"):
        tasks.preset("llada", "wikitext")


def test_hub_data_is_checked_by_content(few: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"problem": "p", "solution": "s", "answer": "1", "unique_id": "test/a/1.json",
             "level": 1, "subject": "Algebra"}]  # fmt: skip
    file = Path(few) / "math" / "test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(_hub, "_fetch", lambda *where: asked.append(where) or file)
    with pytest.raises(OptionError, match="differs from the published"):
        items("math500", data="hub")
    assert asked == [("HuggingFaceH4/MATH-500", "test.jsonl")]
    assert tasks.load("math500", any_data=True).items(Ask(data="hub"))[0].target == "1"
    for name in ("math", "wikitext", "countdown_3", "sudoku_4"):
        with pytest.raises(OptionError, match="not available on the Hub"):
            items(name, data="hub")


@pytest.mark.slow
def test_unreachable_hub_raises_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((OptionError, MissingExtraError), match=r"not be downloaded|pip install"):
        items("gsm8k", data="hub")


@needs_data
def test_hub_digests_match_the_published_files() -> None:
    assert set(_hub.published_digests()) == {
        *_hub.LOCATIONS,
        *(f"bbh/{name}.json" for name in SUBSETS),
    }
    for name, digest in _hub.published_digests().items():
        assert _hub.content_digest(_data.read_rows(name), _hub.locate(name).fields) == digest


@needs_data
def test_every_data_file_is_the_published_one() -> None:
    assert len(_data.published_checksums()) == 80
    for name, digest in _data.published_checksums().items():
        assert sha256(_data.data_file(name).read_bytes()).hexdigest() == digest
    assert (PROCEDURAL.parent / "benchmarks" / "files.sha256").read_text().count("\n") == 80


@needs_data
@pytest.mark.parametrize(
    ("name", "count"),
    [("gsm8k", 1319), ("math", 5000), ("math500", 500), ("humaneval", 164), ("mbpp", 500),
     ("mbpp_sanitized", 257), ("wikitext", 1000), ("wikitext_infill", 1000), ("countdown_4", 1000),
     ("sudoku_4", 972), ("bbh_navigate", 250), ("bbh_snarks", 178)],
)  # fmt: skip
def test_benchmark_sizes(name: str, count: int) -> None:
    found = items(name)
    assert len({item.id for item in found}) == len(found) == count
    assert all(item.prompt and item.target for item in found)


@needs_data
@pytest.mark.parametrize("subset", SUBSETS)
@pytest.mark.parametrize("cot", [False, True])
def test_published_examples_are_parsed(subset: str, cot: bool) -> None:
    task: Any = tasks.load(f"bbh_{subset}", cot=cot)
    for style, end in (("paper", "\n#### "), ("bare", "So the answer is ")):
        prompt = task.items(Ask(count=1, shots=3, style=style))[0].prompt
        assert prompt.count("\nA:") == 4
        assert prompt.count(end if cot else end.strip()) >= 3
        assert ("canary" in prompt, prompt.endswith("\nA:")) == (False, True)
    for _, answer in task.examples(Ask()):
        target = answer.rpartition("#### ")[2].rpartition("answer is ")[2]
        sample = Sample("", "", "", target)
        assert task.grade(sample, answer).correct


@needs_data
def test_every_gsm8k_answer_is_right() -> None:
    task, every = tasks.load("gsm8k"), items("gsm8k")
    for sample in every:
        grade = task.grade(sample, sample.answer)
        assert grade.strict, sample.id
        assert task.grade(sample, f"So it is {sample.target}.").flexible
    wrong = [(s, f"#### {int(s.target.replace(',', '')) + 1}") for s in every]
    wrong += [(s, s.answer.rpartition("####")[0] + "#### 0.123") for s in every]
    wrong += [(every[n], text) for n, text in enumerate(MALFORMED)]
    assert assert_wrong("gsm8k", wrong) > 2000


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["math", "math500"])
def test_every_math_answer_is_right(name: str) -> None:
    task, every = tasks.load(name), items(name)
    for sample in every:
        grade = task.grade(sample, sample.answer)
        assert grade.strict, sample.id
    whole = [sample for sample in every if sample.target.lstrip("-").isdigit()]
    wrong = [(s, rf"\boxed{{{int(s.target) + 1}}}") for s in islice(whole, 120)]
    wrong += [
        (s, rf"\boxed{{\frac{{{s.target}}}{{7}}+3}}") for s in islice(whole, 60) if s.target != "7"
    ]
    fractions = [s for s in every if s.target.startswith(r"\frac")]
    wrong += [(s, rf"\boxed{{{s.target}+1}}") for s in islice(fractions, 60)]
    wrong += [(every[n], text) for n, text in enumerate(MALFORMED)]
    assert assert_wrong(name, wrong) > 150


@needs_data
@pytest.mark.slow
def test_math_verify_agrees_with_every_math_answer() -> None:
    """The test above does not pass only because of our normalisation."""
    from math_verify import parse, verify

    for sample in items("math")[::5]:
        read = parse(f"${sample.target}$")
        assert verify(read, read), sample.target


@needs_data
@pytest.mark.parametrize("subset", SUBSETS)
def test_every_bbh_answer_is_right(subset: str) -> None:
    name = f"bbh_{subset}"
    task, every = tasks.load(name), items(name)
    for sample in every:
        assert task.grade(sample, f"some steps\n#### {sample.target}").strict
        assert task.grade(sample, f"Some steps. So the answer is {sample.target}.").flexible
        assert task.grade(sample, f"Some steps.\n{sample.target}").flexible
    targets = sorted({sample.target for sample in every if len(sample.target) < 40})
    pairs = [(s, other) for s in every for other in targets[:5] if other != s.target]
    wrong = [(s, form.format(other)) for s, other in islice(pairs, 150)
             for form in ("#### {}", "So the answer is {}.", "steps\n{}")]  # fmt: skip
    wrong += [
        (every[n], text) for n, text in enumerate(MALFORMED) if "(" not in text and "{" not in text
    ]
    assert assert_wrong(name, wrong) > 100


@needs_data
@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", CODE)
def test_every_code_answer_is_right(name: str) -> None:
    task: Any = tasks.load(name)
    every = items(name, split="test" if name == "humaneval" else "all")
    assert len(every) == {"humaneval": 164, "mbpp": 974, "mbpp_sanitized": 427}[name]
    failed = [s.id for s in every if not task.run(s, task_program(s)).passed]
    assert failed == []


def task_program(sample: Sample) -> str:
    return sample.extra.get("stub", "") + sample.answer


@needs_data
@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", CODE)
def test_wrong_code_answers_fail(name: str) -> None:
    wrong: list[tuple[Sample, str]] = []
    for n, sample in enumerate(items(name)[:110]):
        entry = sample.extra["entry"]
        forms = (f"def {entry}(*args): return object()", f"def {entry}(*args): return 'wrong' * 3",
                 "import sys; sys.exit(0)", f"def {entry}(",
                 f"def {entry}(*args): raise ValueError",
                 MALFORMED[n % len(MALFORMED)])  # fmt: skip
        wrong.append((sample, forms[n % len(forms)]))
    assert assert_wrong(name, wrong) >= 110


@needs_data
@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", CODE)
def test_reformatted_code_answers_are_right(name: str) -> None:
    task = tasks.load(name)
    for sample in items(name, count=25):
        whole = task_program(sample)
        for text in (
            whole,
            f"Sure!\n```python\n{whole}\n```\nThat's it.",
            f"{whole}\n\nIt's done.",
        ):
            assert task.grade(sample, text).flexible, (sample.id, text)


@needs_data
def test_every_countdown_and_sudoku_answer_is_right() -> None:
    for name in ("countdown_3", "countdown_4", "countdown_5", "sudoku_4"):
        task, every = tasks.load(name), items(name)
        assert all(task.grade(s, s.answer).strict for s in every)
        wrong = [(s, other.answer) for s, other in zip(every, every[7:], strict=False)
                 if s.extra["question"] != other.extra["question"]]  # fmt: skip
        wrong = [
            (s, text)
            for s, text in wrong
            if name != "sudoku_4" or int(s.id.split("/")[2].split("-")[0]) > 8
        ]
        wrong += [(s, s.answer[:-1]) for s in every[:200]]
        assert assert_wrong(name, wrong) > 300


@pytest.mark.slow
@needs_data
def test_wikitext_sentences_are_ordinary_text() -> None:
    first, again, other = (items("wikitext", seed=seed) for seed in (0, 0, 1))
    assert first == again != other
    for sample in first:
        words = len(sample.prompt.split()) + len(sample.target.split())
        assert 8 <= words <= 60
        assert "@" not in sample.prompt + sample.target
        assert sample.target.endswith(".")
    assert items("wikitext", count=10) == first[:10]
    assert not {s.prompt for s in items("wikitext", split="valid")} & {s.prompt for s in first}
