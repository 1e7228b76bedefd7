"""Final answers are read in all their forms, and code is graded by running it."""

from __future__ import annotations

from random import Random

import pytest

from wavefront import tasks
from wavefront.core.errors import OptionError
from wavefront.tasks.grading.final_answer import grade_final
from wavefront.tasks.procedural.code import Code
from wavefront.tasks.sandbox import check_cases


@pytest.mark.parametrize(
    ("kind", "target", "text", "correct", "how"),
    [
        ("number", "18", "9 * 2 = 18\n#### 18", True, "strict"),
        ("number", "1200", "so #### $1,200.00", True, "strict"),
        ("number", "-5", "####-5", True, "strict"),
        ("number", "18", "#### 12 then #### 18", True, "strict"),
        ("number", "18", "#### 18\nand 7 more", True, "strict"),
        ("number", "18", "the answer is 18.", True, "flexible"),
        ("number", "18", "18 or maybe 19", False, "flexible"),
        ("number", "18", "", False, "flexible"),
        ("number", "18", "####", False, "strict"),
        ("choice", "(B)", "#### (B)", True, "strict"),
        ("choice", "(B)", "####(B) blue", True, "strict"),
        ("choice", "(B)", "#### B", True, "strict"),
        ("choice", "(B)", "not (A) but (B)", True, "flexible"),
        ("choice", "(B)", "#### (A)", False, "strict"),
        ("yes_no", "Yes", "####<Yes>", True, "strict"),
        ("yes_no", "No", "Yes? no.", True, "flexible"),
        ("true_false", "True", "#### true", True, "strict"),
        ("brackets", "> ]", "#### >]", True, "strict"),
        ("brackets", "> ]", "#### ] >", False, "strict"),
        ("brackets", "> >", "#### > >", True, "strict"),
        ("words", "a b c", "a\n#### a  b c", True, "strict"),
        ("words", "a b c", "#### a, b, c.", True, "strict"),
        ("words", "a b c", "well\na b c\n", True, "flexible"),
    ],
)
def test_final_answer_is_read(kind: str, target: str, text: str, correct: bool, how: str) -> None:
    grade = grade_final(kind, target, text)
    assert (grade.correct, grade.how) == (correct, how)


def test_code_is_graded_by_running_it() -> None:
    sample = tasks.load("code").sample(Random(0))
    grader = Code(allow_unsandboxed=True)
    body = "\n".join(sample.answer.split("\n")[1:])
    for text in (sample.answer, body, f"Sure:\n```python\n{sample.answer}\n```\nDone."):
        grade = grader.grade(sample, text)
        assert (grade.correct, grade.strict, grade.flexible) == (True, True, True)
        assert (grade.answer, grade.how) == ("passed", "executed")
        assert grade.layers
    assert not grader.grade(sample, "    return object()").correct
    assert grader.grade(sample, "    return (").answer == "SyntaxError"


@pytest.mark.slow
def test_running_code_is_limited() -> None:
    def verdict(body: str) -> str:
        code = f"def f(x):\n    {body}"
        return check_cases(code, "f", [((1,), 2)], timeout=1.0, allow_unsandboxed=True).reason

    assert verdict("return x + 1") == "passed"
    assert verdict("return x") == "wrong value"
    assert verdict("return 2.0") == "wrong value"
    assert verdict("while True: pass") == "timeout"
    assert verdict("return [0] * 10**10") == "MemoryError"
    assert verdict("import torch") == "ModuleNotFoundError"
    assert verdict("raise SystemExit") == "SystemExit"
    assert verdict("import os; os._exit(0)") == "crash"


def test_grade_by_task_name() -> None:
    sample = tasks.load("gsm").sample(Random(0))
    assert tasks.grade("gsm", sample, sample.answer).correct
    assert not tasks.grade("gsm", sample, "#### 0.5").correct
    code = tasks.load("code").sample(Random(0))
    assert tasks.grade("code", code, code.answer, allow_unsandboxed=True).correct
    with pytest.raises(OptionError, match="did you mean 'gsm'"):
        tasks.grade("gsmm", sample, "")
