"""BIG-Bench Hard: 27 subsets, `bbh_navigate` and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wavefront.core.errors import check_choice
from wavefront.tasks.base import Ask, Sample
from wavefront.tasks.benchmarks._benchmark import Benchmark
from wavefront.tasks.grading import Grade
from wavefront.tasks.grading.final_answer import MARK, OPTION, grade_final

CHOICE, YES_NO = "choice", "yes_no"
SUBSETS = {
    "boolean_expressions": "true_false",
    "causal_judgement": YES_NO,
    "date_understanding": CHOICE,
    "disambiguation_qa": CHOICE,
    "dyck_languages": "brackets",
    "formal_fallacies": "valid_invalid",
    "geometric_shapes": CHOICE,
    "hyperbaton": CHOICE,
    "logical_deduction_five_objects": CHOICE,
    "logical_deduction_seven_objects": CHOICE,
    "logical_deduction_three_objects": CHOICE,
    "movie_recommendation": CHOICE,
    "multistep_arithmetic_two": "number",
    "navigate": YES_NO,
    "object_counting": "number",
    "penguins_in_a_table": CHOICE,
    "reasoning_about_colored_objects": CHOICE,
    "ruin_names": CHOICE,
    "salient_translation_error_detection": CHOICE,
    "snarks": CHOICE,
    "sports_understanding": YES_NO,
    "temporal_sequences": CHOICE,
    "tracking_shuffled_objects_five_objects": CHOICE,
    "tracking_shuffled_objects_seven_objects": CHOICE,
    "tracking_shuffled_objects_three_objects": CHOICE,
    "web_of_lies": YES_NO,
    "word_sorting": "words",
}
VARIANTS = {f"bbh_{subset}": {"subset": subset} for subset in SUBSETS}
PUBLISHED = re.compile(
    r"^Q: (.*?)\nA: (?:Let's think step by step\.)?\s*(.*?)(?=\n\nQ: |\s*\Z)", re.M | re.S
)
ENDING = re.compile(r"\s*So the answer is (.*?)\.?\s*\Z", re.S)


@dataclass(frozen=True, kw_only=True)
class Bbh(Benchmark):
    """One subset, with the three published worked examples. `cot` includes their reasoning."""

    splits: ClassVar[tuple[str, ...]] = ("test",)
    subset: str = "navigate"
    cot: bool = False

    def __post_init__(self) -> None:
        check_choice("subset", self.subset, SUBSETS)

    @property
    def name(self) -> str:
        return f"bbh_{self.subset}"

    @property
    def template(self) -> str:
        return self.subset

    def samples(self, ask: Ask) -> list[Sample]:
        rows = self.read(f"bbh/{self.subset}.json", ask)
        return [
            Sample(f"{self.name}/test/{index}", row["input"], "", row["target"])
            for index, row in enumerate(rows)
        ]

    def examples(self, ask: Ask) -> Sequence[tuple[str, str]]:
        text = self.read_text(f"bbh/cot-prompts/{self.subset}.txt", ask)
        return [(asked, self._worked(reasons, ask)) for asked, reasons in PUBLISHED.findall(text)]

    def _worked(self, reasons: str, ask: Ask) -> str:
        """Write the published answer with the ending that the prompt requests."""
        ending = ENDING.search(reasons)
        target = ending[1] if ending else reasons
        last = f"{MARK} {target}" if ask.style == "paper" else f"So the answer is {target}."
        return f"{ENDING.sub('', reasons)}\n{last}" if self.cot else last

    def final_kind(self, sample: Sample) -> str:
        """Return the subset's kind. Three published targets are an option's text."""
        kind = SUBSETS[self.subset]
        return "words" if kind == CHOICE and not OPTION.fullmatch(sample.target) else kind

    def grade(self, sample: Sample, text: str) -> Grade:
        return grade_final(self.final_kind(sample), sample.target, text, spoken=True)
