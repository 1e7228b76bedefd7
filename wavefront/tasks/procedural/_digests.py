"""Writes `real.bin`, the questions that must never be generated, as 8-byte digests.

Run `python -m wavefront.tasks.procedural._digests` with WAVEFRONT_DATA set, when a task is added.
"""

from __future__ import annotations

from wavefront.tasks.base import PROCEDURAL, digest, essence
from wavefront.tasks.benchmarks._data import examples

# The subsets a generator imitates: their questions must never be generated for training.
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
    """The sorted digests of every question of the imitated subsets."""
    questions = {essence(item["input"]) for name in IMITATED for item in examples(name)}
    return b"".join(sorted(map(digest, questions)))


if __name__ == "__main__":
    (PROCEDURAL / "real.bin").write_bytes(real_digests())
