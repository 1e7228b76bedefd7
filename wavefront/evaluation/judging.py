"""Judging: the quality of the answers to a task that has no right ones, such as `stories`.

A judge scores every answer. It also scores what the original, the model that was adapted, wrote for
the same item, cut to the same canvas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wavefront.analysis import quality
from wavefront.analysis.quality import QualityJudge, TextQuality
from wavefront.core.errors import OptionError
from wavefront.evaluation import fingerprint
from wavefront.evaluation.run import Run
from wavefront.storage.fingerprint import of_value
from wavefront.tasks.base import Sample

TEXTS = 256  # judged before they are written


def is_judged(task: Any) -> bool:
    """Return whether a judge scores the answers to a task."""
    return getattr(task, "judged", False) is True


def check_tokenizer(task: Any, tokenizer: str) -> None:
    """Check that the judge of a task can read the tokens of a model.

    Args:
        task: The task. One without a judge is accepted.
        tokenizer: The fingerprint of the model's tokenizer.

    Raises:
        OptionError: The task's judge is missing, or has another tokenizer.
    """
    if not is_judged(task):
        return
    folder = quality.judge_folder(task.model)
    if folder is None:
        raise OptionError(
            f"{task.model} has no judge to score {task.name}: use tale, or a model made by "
            "`wavefront train adapt`.",
            option="model",
            value=task.model,
        )
    if fingerprint.of_tokenizer_files(folder.parent) != tokenizer:
        raise OptionError(
            f"The judge of {task.model} cannot read the tokens of this model, which has another "
            f"tokenizer: use --model {task.model}, or --task \"{task.name}(model='DIR')\" with the "
            "folder of a model that has a judge.",
            option="model",
            value=task.model,
        )


def quality_lines(
    answered: Run,
    answers: Mapping[str, Mapping[str, Any]],
    samples: Mapping[str, Sample],
    *,
    task: Any,
) -> Iterator[list[dict[str, Any]]]:
    """Yield a line for every answer: its quality, and the quality of the original's own text.

    The lines come in lists of many, because the judge reads many texts at once. A prompt that was
    too long for the model has no quality.
    """
    check_tokenizer(task, answered.decides["model"]["tokenizer"])
    if not answers:
        return
    judge = QualityJudge.load(task.model)
    length = answered.decides["options"]["max_new_tokens"]
    keys = [*answers]
    for some in (keys[at : at + TEXTS] for at in range(0, len(keys), TEXTS)):
        asked = {key: samples[answers[key]["id"]] for key in some}
        written = {
            key: judge.answer(
                sample.prompt,
                answers[key]["tokens"],
                ended=answers[key]["finish_reason"] == "stop",
                raw=answered.decides["raw"],
            )
            for key, sample in asked.items()
            if not answers[key].get("problem")
        }
        found = dict(zip(written, judge.measure_texts([*written.values()]), strict=True))
        originals = judge.measure_texts(
            [
                judge.original(
                    sample.prompt,
                    sample.extra["text"],
                    length=length,
                    finished=sample.extra.get("finished"),
                )
                for sample in asked.values()
            ]
        )
        yield [
            {
                "key": key,
                "id": sample.id,
                "task": task.name,
                "version": str(task.version),
                "text_hash": of_value(answers[key]["text"]),
                "quality": found[key]._asdict() if key in found else None,
                "original": original._asdict(),
            }
            for (key, sample), original in zip(asked.items(), originals, strict=True)
        ]


def qualities(graded: Run, which: str = "quality") -> dict[str, TextQuality]:
    """Return the quality of each item's answer, or with "original" of the original's text.

    An item whose prompt was too long is left out.
    """
    return {
        line["id"]: quality.from_json(line[which])
        for line in graded.grades.values()
        if line["quality"] is not None
    }
