"""Write `real.bin`: 8-byte digests of the questions that must never be generated.

When you add a task, run `python -m wavefront.tasks.procedural._digests` with WAVEFRONT_DATA set.
"""

from __future__ import annotations

from wavefront.tasks.base import PROCEDURAL, digest, question_key
from wavefront.tasks.benchmarks._data import examples

# The BBH subsets that a generator imitates. Their questions must never be generated.
IMITATED = (
    "boolean_expressions",
    "date_understanding",
    "dyck_languages",
    "hyperbaton",
    "logical_deduction_three_objects",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "reasoning_about_colored_objects",
    "temporal_sequences",
    "tracking_shuffled_objects_three_objects",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "web_of_lies",
    "word_sorting",
)


def real_digests() -> bytes:
    """Return the sorted digests of all questions of the imitated subsets."""
    questions = {question_key(item["input"]) for name in IMITATED for item in examples(name)}
    return b"".join(sorted(map(digest, questions)))


if __name__ == "__main__":
    (PROCEDURAL / "real.bin").write_bytes(real_digests())
