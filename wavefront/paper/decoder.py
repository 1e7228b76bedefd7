"""Decodes of held-out items with their traces, for experiments on how a decode proceeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

import wavefront
from wavefront import tasks
from wavefront.core.canvas import Canvas, blank
from wavefront.core.errors import OptionError
from wavefront.core.state import start
from wavefront.engine.session import DecodeSession, config_for_trace
from wavefront.evaluation.judging import is_judged
from wavefront.evaluation.task_spec import is_own, open_task
from wavefront.evaluation.trials import Scale
from wavefront.lm import LM, Completion
from wavefront.results.table import to_json
from wavefront.tasks.base import Ask, Procedural, Sample
from wavefront.text.tokenizer import prompt_ids
from wavefront.traces.trace import Trace

DRAWS = 200  # of a task for each item, to find those whose answers fit
UNGRADED = ("code",)  # grading it would run model-written code


class DecodedItems(NamedTuple):
    """Items decoded under one strategy."""

    samples: list[Sample]
    traces: list[Trace]  # one per batch, items in order
    answers: list[Completion]
    correct: list[bool] | None  # None: the task is not graded here


@dataclass(kw_only=True)
class ItemDecoder:
    """A model and the scale of an experiment; draws held-out items and decodes them."""

    lm: LM
    scale: Scale
    seed: int = 0  # of sampling
    items_seed: int = 0  # of drawing the items
    radius: int = 2  # of the measures, the same for every strategy
    data: str = ""  # the directory of the benchmarks' files
    progress: Callable[[str, float], None] = lambda what, share: None
    keep: Callable[[str, Callable[[], Any]], Any] = lambda key, make: to_json(make())
    _parts: int = field(default=1, init=False)
    _done: int = field(default=0, init=False)

    @property
    def strategies(self) -> tuple[str, ...]:
        return self.scale.strategies

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.scale.tasks

    @property
    def items(self) -> int:
        """Return the number of items of each task."""
        if self.scale.items is None:
            raise OptionError("This experiment needs a number of items: give --items N.")
        return self.scale.items

    @property
    def length(self) -> int:
        """Return N."""
        return self.scale.length

    @property
    def steps(self) -> int:
        """Return T."""
        return self.scale.length if self.scale.steps is None else self.scale.steps

    def draw(self, name: str, count: int | None = None) -> list[Sample]:
        """Draw held-out items of a task whose answers fit the canvas.

        Raises:
            OptionError: Too few items have answers that fit.
        """
        wanted = self.items if count is None else count
        found: dict[str, Sample] = {}
        for sample in self._offered(name, wanted):
            if len(self.lm.tokenizer.encode(sample.answer)) < self.length:  # one for the end token
                found.setdefault(sample.id, sample)
            if len(found) == wanted:
                return list(found.values())
        raise OptionError(
            f"Only {len(found)} of {wanted} items of {name} have answers that fit {self.length} "
            "positions: give a larger -n, fewer --items or another --task."
        )

    def _offered(self, name: str, wanted: int) -> Iterator[Sample]:
        """Yield items in the order of the seed: a whole file, or a bounded number of draws."""
        task = open_task(name)
        if not isinstance(task, Procedural) and name not in tasks.names():
            own = is_own(name) and task.name != "jsonl"  # a class that may generate items
            count, style = None if own else 1 << 30, self.scale.style
            ask = Ask(count=count, seed=self.items_seed, style=style, data=self.data)
            yield from task.items(ask)
            return
        random = Random(f"{self.items_seed} {name} held-out")
        for _ in range(DRAWS * wanted):
            yield task.sample(random, split="held-out", style=self.scale.style)

    def expect_parts(self, parts: int, count: int | None = None) -> None:
        """Set the number of progress units; one unit is roughly one batch of one strategy.

        Items of later tasks are drawn once now, so that errors appear before hours of decoding.
        """
        self._parts, self._done = max(1, parts), 0
        for name in self.tasks[1:]:
            self.draw(name, count)

    def batches(self, count: int | None = None) -> int:
        """Return the number of batches that the items of a task make."""
        return -(-(self.items if count is None else count) // self.scale.rows)

    def finish_part(self, what: str) -> None:
        """Report that a part is done."""
        self._done += 1
        self.progress(what, min(1.0, self._done / self._parts))

    def decode(
        self, name: str, samples: Sequence[Sample], strategy: str, **options: Any
    ) -> DecodedItems:
        """Decode items of a task under a strategy; `options` override the decoder's own.

        All traces stay in memory. Use `decode_batches` for many items.
        """
        parts = [*self.decode_batches(name, samples, strategy, **options)]
        graded = [one.correct for one in parts if one.correct is not None]
        return DecodedItems(
            [*samples],
            [trace for one in parts for trace in one.traces],
            [answer for one in parts for answer in one.answers],
            [right for some in graded for right in some] if graded else None,
        )

    def decode_batches(
        self, name: str, samples: Sequence[Sample], strategy: str, **options: Any
    ) -> Iterator[DecodedItems]:
        """Decode items batch by batch, so that one full trace is in memory at a time."""
        settings = self._options(strategy) | options
        for some in self._split(samples):
            stream = self.lm.stream([sample.prompt for sample in some], trace="full", **settings)
            for step in stream:
                within = (step.number + 1) / stream.decoding.plan.steps
                self.progress(strategy, min(1.0, (self._done + within) / self._parts))
            answers = stream.completions
            traces = [] if answers[0].trace is None else [answers[0].trace]
            self.finish_part(strategy)
            yield DecodedItems(some, traces, [*answers], self._grade(name, some, answers))

    def decode_tightly(self, samples: Sequence[Sample], strategy: str) -> Iterator[DecodedItems]:
        """Decode items batch by batch, each on a canvas of its reference and one end token.

        T is the length of an item's own canvas. Items of similar length share a batch.
        """
        model, tokenizer = self.lm.model, self.lm.tokenizer
        sizes = {one.id: len(tokenizer.encode(one.answer)) + 1 for one in samples}
        options = self._options(strategy) | {"max_new_tokens": max(sizes.values())}
        plan = self.lm.plan(options | {"steps": max(sizes.values())})
        for some in self._split(sorted(samples, key=lambda one: sizes[one.id])):
            lengths = [sizes[one.id] for one in some]
            prompts = [prompt_ids(tokenizer, one.prompt) for one in some]
            board = blank(prompts, lengths, mask_id=model.mask_id, pad_id=model.pad_id)
            board = Canvas(*(part.to(model.device) for part in board))
            config = config_for_trace(plan.config, "full")
            state = start(board, config, lengths, seeds=[self.seed] * len(some))
            session = DecodeSession(model, board, plan, record="full", state=state).drain()
            trace = session.trace()
            self.finish_part(strategy)
            yield DecodedItems(some, [] if trace is None else [trace], [], None)

    def _options(self, strategy: str) -> dict[str, Any]:
        return {
            "strategy": strategy,
            "max_new_tokens": self.length,
            "steps": self.steps,
            "seed": self.seed,
            "eos": "keep",
            **self.scale.options,
        }

    def _split(self, samples: Sequence[Sample]) -> Iterator[list[Sample]]:
        for at in range(0, len(samples), self.scale.rows):
            yield [*samples[at : at + self.scale.rows]]

    def _grade(
        self, name: str, samples: Sequence[Sample], answers: Sequence[Completion]
    ) -> list[bool] | None:
        task = open_task(name)
        if name in UNGRADED or task.executes or is_judged(task):
            return None
        pairs = zip(samples, answers, strict=True)
        return [task.grade(sample, answer.text).correct for sample, answer in pairs]

    def configuration(self) -> dict[str, Any]:
        """Return the settings that the runner's configuration lacks."""
        return {
            "model": self.lm.name,
            "strategies": list(self.strategies),
            "split": f"held-out, answers that fit {self.length} places",
            "radius of the measures": self.radius,
            "wavefront": wavefront.__version__,
            "date": datetime.now(UTC).date().isoformat(),
        }
