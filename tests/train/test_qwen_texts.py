"""The script that lets an original write mathematics and functions."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import load_script
from helpers.tiny_llamas import write_published

from wavefront.core.errors import OptionError
from wavefront.tasks import load, sandbox
from wavefront.tasks.base import Ask
from wavefront.train.original import read_original, save_original

qwen_texts = load_script("qwen_texts")
package_functions = qwen_texts.package_functions
number_variants = qwen_texts.number_variants
try:
    HAS_SANDBOX = bool(sandbox.layers())
except OptionError:
    HAS_SANDBOX = False

DOUBLE = '''def double_numbers(numbers: List[int]) -> List[int]:
    """Return every number twice as large.

    >>> double_numbers([1, 2])
    [2, 4]
    >>> double_numbers([])
    []
    """
    return [2 * number for number in numbers]
'''
WRONG = DOUBLE.replace("2 * number for", "3 * number for")


def test_function_is_split_into_stub_and_body() -> None:
    found = qwen_texts.read_function(f"{DOUBLE}\n\ndef next_one(")
    assert found is not None
    assert found.stub + found.body == DOUBLE.rstrip()
    assert found.summary == "Return every number twice as large."
    assert found.examples == (("double_numbers([1, 2])", "[2, 4]"), ("double_numbers([])", "[]"))
    with_one, human_eval, mbpp = found.pairs()
    assert with_one.prompt.count(">>>") == 1
    assert human_eval.prompt.count(">>>") == 2
    assert human_eval.prompt.rstrip().endswith('"""')
    assert human_eval.answer == "    return [2 * number for number in numbers]"
    assert "assert double_numbers([1, 2]) == [2, 4]" in mbpp.prompt
    assert '"""' not in mbpp.answer
    assert "return [2 * number" in mbpp.answer


@pytest.mark.parametrize(
    "text",
    [
        DOUBLE,  # nothing follows, so it may be cut
        "def f(x):\n    return x\n\nprint()",  # no docstring
        'def f(x):\n    """Do it.\n\n    >>> f(1)\n    1\n    """\n    pass\n\nprint()',
        'def f(x):\n    """Do it.\n\n    >>> g(1)\n    1\n    """\n    return x\n\nprint()',
        'def f(x):\n    """Do it."""\n    return x\n\nprint()',  # no examples
        "def f(x:\n    return (\n\nprint()",
    ],
)
def test_functions_that_teach_nothing_are_dropped(text: str) -> None:
    assert qwen_texts.read_function(text) is None


@pytest.mark.skipif(not HAS_SANDBOX, reason="no sandbox on this machine")
def test_only_functions_that_pass_their_examples_are_kept(tmp_path: Path) -> None:
    functions = [qwen_texts.read_function(f"{text}\n\n#") for text in (DOUBLE, WRONG)]
    known = tmp_path / "checked.jsonl"
    passed = qwen_texts.check_functions(functions, known, workers=2)
    assert [function.code for function in passed] == [DOUBLE.rstrip()]
    assert len(known.read_text().splitlines()) == 2
    # A second run reads the verdicts instead of running the functions again.
    known.write_text(known.read_text().replace("[0, 1]", "[]"))
    assert qwen_texts.check_functions(functions, known, workers=2) == []


@pytest.mark.skipif(not HAS_SANDBOX, reason="no sandbox on this machine")
def test_wrong_example_is_left_out(tmp_path: Path) -> None:
    text = DOUBLE.replace('    []\n    "', '    [0]\n    "')
    (kept,) = qwen_texts.check_functions(
        [qwen_texts.read_function(f"{text}\n\n#")], tmp_path / "checked.jsonl", workers=1
    )
    assert kept.examples == (("double_numbers([1, 2])", "[2, 4]"),)
    assert kept.stub.count(">>>") == 1
    assert kept.body == "    return [2 * number for number in numbers]"


def test_prompts_begin_as_those_of_humaneval() -> None:
    plain = DOUBLE.replace("numbers: List[int]", "numbers").replace(" -> List[int]", "")
    found = set()
    for extra in range(4):
        text = plain.replace("Return", "Return" + "s" * extra)
        found.add(qwen_texts.read_function(f"{text}\n\n#").without_examples().prompt[:34])
    begin = "Complete the Python function.\n\n"
    assert found == {f"{begin}def", f"{begin}\nde", f"{begin}\n\nd"}


def test_function_without_examples_keeps_its_description() -> None:
    prompt, answer = qwen_texts.read_function(f"{WRONG}\n\n#").without_examples()
    assert prompt.endswith('List[int]:\n    """Return every number twice as large.\n    """\n')
    assert "from typing import List\n" in prompt
    assert ">>>" not in prompt
    assert answer == "    return [3 * number for number in numbers]"


def test_problem_is_computed_again_for_other_numbers() -> None:
    question = "Ann packs 15 bags with 8 apples each. She sells half of them. How many are left?"
    solution = "There are 15*8=<<15*8=120>>120 apples.\n120/2=<<120/2=60>>60 are left.\n#### 60"
    found = list(number_variants.variants(question, solution, 5))
    assert len(found) > 2
    for asked, solved in found:
        bags, apples = (int(word) for word in asked.split() if word.isdigit())
        total = bags * apples
        assert (bags, apples) != (15, 8)
        assert bags > apples > 3
        assert solved == (
            f"There are {bags}*{apples}={total} apples.\n{total}/2={total // 2} are left.\n"
            f"#### {total // 2}"
        )


@pytest.mark.parametrize(
    ("question", "solution"),
    [
        # A result that is also a number of the question.
        ("Tom buys 8 boxes of 24 pens. 192 pens are red.", "<<8*24=192>>192\n#### 192"),
        # A computation without an annotation.
        ("A pint takes 200 berries. How many for 6 quarts?", "<<400*6=2400>>2400\n#### 2400"),
        # A rounded result, arithmetic that is not allowed, and no annotation at all.
        ("Share 50 sweets among 7.", "<<50/7=7.1>>7.1\n#### 7.1"),
        ("A square has a side of 9.", "<<9**2=81>>81\n#### 81"),
        ("Add 8 and 9.", "8+9=17\n#### 17"),
        # A value that a word has too.
        ("Ann is 8, Bob 6 less, Cy twice Ann's age.", "<<8-6=2>>2\n<<8*2=16>>16\n#### 16"),
        ("Ann eats a fifth of her 5 pies.", "<<5/5=1>>1\n#### 1"),
        # Nothing can change: a percentage, a fraction and a number of days.
        ("She saves 50% for 7 days.", "<<50*7=350>>350\n#### 350"),
    ],
)
def test_unsafe_problems_have_no_variants(question: str, solution: str) -> None:
    assert list(number_variants.variants(question, solution, 3)) == []


@pytest.mark.parametrize("text", ["It is 1/5 of 9.", "5% off", "at 5:30", "the 5th", "5-year-old"])
def test_parts_of_other_expressions_stay(text: str) -> None:
    match = next(m for m in number_variants.NUMBER.finditer(text) if m[0] == "5")
    assert number_variants.is_fixed(match, text) == (text != "5-year-old")


def test_parts_come_in_turn_and_only_once(tmp_path: Path) -> None:
    kinds = [qwen_texts.Functions(8), qwen_texts.Functions(4)]
    kinds[1].name = "others"
    (tmp_path / "functions-0002.jsonl").write_text("")
    found = qwen_texts.missing_parts(kinds, tmp_path, 2)
    # A half of the one is done when a half of the other is.
    assert [part.path.stem for part in found] == [
        "functions-0000", "others-0000", "functions-0001", "others-0001", "functions-0003",
    ]  # fmt: skip
    assert list(found[-1].numbers) == [6, 7]


def test_prompts_are_made_one_part_ahead() -> None:
    made: list[int] = []

    def make(part: int) -> list[list[int]]:
        made.append(part)
        return [[part]]

    parts = qwen_texts.made_ahead([1, 2, 3], make)
    assert next(parts) == (1, [[1]])
    assert 3 not in made
    assert list(parts) == [(2, [[2]]), (3, [[3]])]


@pytest.mark.skipif(not HAS_SANDBOX, reason="no sandbox on this machine")
def test_one_run_tells_which_examples_pass() -> None:
    text = DOUBLE.replace(
        '    """\n    return', '    >>> double_numbers(["a"])\n    [2]\n    """\n    return'
    )
    function = qwen_texts.read_function(f"{text}\n\n#")
    assert len(function.examples) == 3
    assert qwen_texts.passed_examples(function) == [0, 1]
    rooted = 'def root(x):\n    """Return it.\n\n    >>> root(4)\n    2.0\n    """\n'
    rooted += "    y = math.sqrt(x)\n    return y"
    # The check imports what the prompt imports.
    assert qwen_texts.passed_examples(qwen_texts.read_function(f"{rooted}\n\n#")) == [0]
    wrong = qwen_texts.read_function(f"{WRONG}\n\n#")
    assert qwen_texts.passed_examples(wrong) == [1]
    fails = text.replace("return [", "return [][0] + [")
    assert qwen_texts.passed_examples(qwen_texts.read_function(f"{fails}\n\n#")) == []


def test_functions_that_did_not_run_keep_their_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(qwen_texts, "QUESTIONS", {})
    monkeypatch.setattr(qwen_texts, "mbpp_pairs", lambda data: ())
    parts = tmp_path / "parts"
    parts.mkdir()
    (parts / "functions-0000.jsonl").write_text(json.dumps({"code": DOUBLE.rstrip()}) + "\n")
    command = ["check", "--out", str(tmp_path), "--workers", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "_start", lambda *_, **__: sandbox._Reply({"refused": "no"}, False))
        sandbox.layers.cache_clear()
        assert qwen_texts.main(command) == 0
    sandbox.layers.cache_clear()
    assert "1 functions are not checked. No sandbox" in capsys.readouterr().out
    if HAS_SANDBOX:
        assert qwen_texts.main([*command, "--minutes", "0"]) == 0
        assert "1 functions are not checked: the time is up" in capsys.readouterr().out
    assert (tmp_path / "checked.jsonl").read_text() == ""
    (pair,) = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert ">>>" not in pair["prompt"]


@pytest.mark.slow  # imports transformers
def test_write_continues_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_published(tmp_path / "original", "qwen2")
    monkeypatch.setattr(qwen_texts, "QUESTIONS", {})
    monkeypatch.setitem(sys.modules, "qwen_texts", qwen_texts)  # other processes find it there
    command = ["write", "--original", str(tmp_path / "original"), "--out", str(tmp_path / "texts")]
    command += ["--functions", "5", "--batch", "2", "--answer-tokens", "4", "--device", "cpu"]
    assert qwen_texts.main(command) == 0
    parts = tmp_path / "texts" / "parts"
    assert len(list(parts.iterdir())) == 3
    written = {path.name: path.read_bytes() for path in parts.iterdir()}
    (parts / "functions-0001.jsonl").unlink()
    assert qwen_texts.main(command) == 0
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == written
    assert capsys.readouterr().out.count("functions-0001") == 2


def test_renumbered_problems_are_found_once(tmp_path: Path) -> None:
    class Kind:
        name = "some"
        calls = 0

        def renumbered(self, times: int) -> list[Any]:
            self.calls += 1
            return [qwen_texts.Pair("p\n", str(times))]

    kind = Kind()
    for times in (2, 2, 3):
        found = qwen_texts.renumbered_once(kind, times, tmp_path)
        assert found == [("p\n", str(times))]
    assert kind.calls == 2


def test_check_writes_every_pair_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qwen_texts, "QUESTIONS", {})
    monkeypatch.setattr(qwen_texts, "mbpp_pairs", lambda data: ())
    parts = tmp_path / "parts"
    parts.mkdir()
    line = json.dumps({"code": DOUBLE.rstrip()}) + "\n"
    (parts / "functions-0000.jsonl").write_text(line)
    (parts / "functions-0001.jsonl").write_text(line)
    (tmp_path / "checked.jsonl").write_text(
        json.dumps({"code": DOUBLE.rstrip(), "passed": [0, 1]}) + "\n"
    )
    assert qwen_texts.main(["check", "--out", str(tmp_path), "--workers", "1"]) == 0
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == 3
    assert all(set(pair) == {"prompt", "answer"} for pair in pairs)


def test_check_without_texts_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(qwen_texts, "QUESTIONS", {})
    monkeypatch.setattr(qwen_texts, "mbpp_pairs", lambda data: ())
    (tmp_path / "parts").mkdir()
    assert qwen_texts.main(["check", "--out", str(tmp_path)]) == 2
    assert "run write first" in capsys.readouterr().err


@pytest.mark.slow  # imports transformers
def test_score_keeps_the_answers_and_grades_them_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_published(tmp_path / "original", "qwen2")
    texts = tmp_path / "texts"
    save_original(read_original(tmp_path / "original"), texts / "original")
    command = ["score", "--out", str(texts), "--task", "boolean_expressions", "--items", "4"]
    command += ["--answer-tokens", "6", "--batch", "3", "--device", "cpu", "--workers", "1"]
    assert qwen_texts.main(command) == 0
    assert "boolean_expressions: 0 of 4 right, 0.0 % [0.0, " in capsys.readouterr().out
    (answers,) = (texts / "answers").iterdir()
    assert len(answers.read_text().splitlines()) == 4
    items = load("boolean_expressions").items(Ask(count=4))
    answers.write_text("".join(json.dumps(item.answer) + "\n" for item in items))
    assert qwen_texts.main(command) == 0
    assert "4 of 4 right" in capsys.readouterr().out


@pytest.mark.skipif(not os.environ.get("WAVEFRONT_DATA"), reason="WAVEFRONT_DATA is not set")
@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_questions_of_the_worked_examples_are_not_asked(name: str) -> None:
    kind = qwen_texts.Questions(name, 1, os.environ["WAVEFRONT_DATA"])
    assert len(kind.items) > 7000
    shown = kind.request(0).text.split("\nA:")[: qwen_texts.SHOTS]
    for part in shown:
        question = part.rpartition("Q: ")[2]
        assert not any(item.prompt.endswith(question) for _, item in kind.items)


MODULE = '''import math
from other import tool


def norm(values):
    """Return the length of a vector."""
    total = sum(value * value for value in values)
    return math.sqrt(total)


def apply(values: List[int]) -> List[int]:
    """Apply the tool.

    It is applied to each value.
    """
    result = [tool(value) for value in values]
    return result


def copied(numbers):
    """Return the same."""
    total = sum(value * value for value in values)
    return math.sqrt(total)


def undocumented(value):
    value += 1
    return value


def one_line(value):
    """Return it."""
    return value


def missing(value):
    """Return nothing yet."""
    value += 1
    raise NotImplementedError


@tool
def wrapped(value):
    """Return more."""
    value += 1
    return value


class Thing:
    def method(self):
        """Return more."""
        value = 1
        return value
'''


def test_functions_of_packages_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("box/one.py", "box/two.py", "box/tests/one.py", "box/_vendor/one.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(MODULE)
    (tmp_path / "box" / "made.py").write_text("# Generated by a tool\n" + MODULE)
    (tmp_path / "box" / "old.py").write_text("print 'a'\n")
    (tmp_path / "single.py").write_text(MODULE.replace("value * value", "value ** 2"))
    monkeypatch.setitem(sys.modules, "package_functions", package_functions)
    found = package_functions.collect([tmp_path], workers=1)
    assert [(one.package, one.alone) for one in found] == [
        ("box", True), ("box", False), ("single", True)
    ]  # fmt: skip
    assert found[1].code.startswith("def apply(")
    # There, `math` is not the module that a prompt would import.
    (tmp_path / "single.py").write_text(MODULE.replace("import math", "from other import math"))
    assert {one.package for one in package_functions.collect([tmp_path], workers=1)} == {"box"}
    (tmp_path / "single.py").write_text(MODULE.replace("value * value", "value ** 2"))
    monkeypatch.setattr(package_functions, "MOST", 1)
    assert package_functions.collect([tmp_path], workers=1) == [found[0], found[2]]


def test_functions_of_packages_become_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "one.py").write_text(MODULE)
    monkeypatch.setattr(qwen_texts, "QUESTIONS", {})
    monkeypatch.setattr(qwen_texts, "mbpp_pairs", lambda data: ())
    monkeypatch.setattr(package_functions, "installed", lambda: [tmp_path / "lib"])
    out = ["--out", str(tmp_path / "texts"), "--workers", "1"]
    for _ in range(2):
        assert qwen_texts.main(["collect", *out]) == 0
    said = capsys.readouterr().out
    assert "2 functions of 1 packages, 1 need only the standard library" in said
    assert "real-0000.jsonl is there" in said
    assert qwen_texts.main(["check", *out]) == 0
    lines = (tmp_path / "texts" / "pairs.jsonl").read_text().splitlines()
    pairs = {pair["prompt"]: pair["answer"] for pair in map(json.loads, lines)}
    begin = "Complete the Python function.\n\n"
    signature = "def apply(values: List[int]) -> List[int]:\n"
    assert pairs == {
        f'{begin}import math\n\n\ndef norm(values):\n    """Return the length of a vector."""\n': (
            "    total = sum(value * value for value in values)\n    return math.sqrt(total)"
        ),
        f"{begin}from typing import List\n\n\n{signature}"
        '    """Apply the tool.\n\n    It is applied to each value.\n    """\n': (
            "    result = [tool(value) for value in values]\n    return result"
        ),
    }
