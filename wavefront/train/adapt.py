"""Turn an autoregressive checkpoint into a masked diffusion model.

There are four stages. Each writes its result to the run's directory, so that a stopped command can
continue:

1. `original/`: the checkpoint in the layout of the result, causal, with a pruned vocabulary.
2. `rows/`: the training texts, read from a file or written by the original, batch by batch.
3. `state.pt`, `log.jsonl`, `model/`: training, with the loop that trained ripple.
4. `model/`: the card, the judge, the held-out prompts and the curve.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from wavefront.core.errors import OptionError, RunError, did_you_mean
from wavefront.models.judge import Judge
from wavefront.models.loader import resolve_device, resolve_dtype
from wavefront.storage import hub
from wavefront.storage.read_file import MIB, read_json
from wavefront.storage.write_file import write_text
from wavefront.train.card import write_card
from wavefront.train.config import AdaptConfig, RowConfig, TrainConfig
from wavefront.train.loop import train
from wavefront.train.original import (
    ORIGINAL,
    Original,
    load_original,
    read_original,
    save_original,
)
from wavefront.train.overlap import (
    NGRAM,
    TEMPLATE_SHARE,
    TEMPLATE_TEXTS,
    clean_rows,
    overlapping_rows,
    shared_rows,
    template_runs,
)
from wavefront.train.prune import expected_usage, prune
from wavefront.train.rows import Rows
from wavefront.train.sampling import FILTERS, Filter, Writer, WrittenText
from wavefront.train.state import STATE
from wavefront.train.texts import Example, read_examples, read_pairs, unseen_texts

FACTS = "facts.json"  # what the stages found out, for the card
SETTINGS = "adapt.json"  # the settings of the texts, which a continued run must share
# What the config.json of an adaptation may have other than its original.
MAY_DIFFER = {"max_position_embeddings", "max_sequence_length", "torch_dtype"}
NOT_EXCLUDED = (
    "The texts are compared with no benchmark. To leave out texts that overlap with one, give "
    "its name or a file: --exclude NAME."
)
MAX_TEXT = 1024  # tokens of a written text, unless configured
CANDIDATES = 32  # texts of a file compared for each one that is held out
BEGINNING = 4  # tokens of a prompt that tell its kind
TEMPLATE_OF_KIND = 0.5  # a run in more than this share of a kind's texts is a template
# The kinds of written texts. No two kinds share random numbers.
VOCABULARY, HELD_OUT, TRAINING = 0, 1, 2


def adapt(config: AdaptConfig, training: TrainConfig) -> dict[str, Any]:
    """Run all stages that are not done, and return the last record of training.

    Args:
        config: The original and its data.
        training: The settings of training. Its shape, initial weights and time limit are set here.
    """
    begin = time.monotonic()
    config.out.mkdir(parents=True, exist_ok=True)
    _check_settings(config, training)
    device = resolve_device(training.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    original = prepare_original(config, training, device)
    if config.stage == "original":
        return {}
    limit = begin + 60 * (config.minutes or float("inf"))
    done = prepare_rows(config, training, original, limit=limit)
    if config.stage == "rows" or not done:
        return {}
    _check_start(config)
    record = train(_training(config, training, original, since=begin))
    publish(config, training, original)
    return record


def _training(
    config: AdaptConfig, training: TrainConfig, original: Original, *, since: float
) -> TrainConfig:
    """Return the settings of training for this original and for the time that is left."""
    shape = original.model.config
    resumes = (config.out / STATE).exists()
    left = None
    if config.minutes is not None:
        left = max(0.05, config.minutes - (time.monotonic() - since) / 60)
    assert isinstance(training.data, RowConfig)
    return replace(
        training,
        init=None if resumes else config.start_from or config.out / "original",
        resume=resumes,
        stop_after=left,
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        mlp_width=shape.mlp_width,
        # Positions that the original has learned are not lost, so longer prompts stay possible.
        max_length=max(training.data.buckets[-1], shape.max_length),
    )


def _check_start(config: AdaptConfig) -> None:
    """Raise if the weights to start from do not have the shape and tokens of the original."""
    if config.start_from is None:
        return
    folders = (config.out / "original", config.start_from)
    wanted, given = (hub.read_json(folder / "config.json") for folder in folders)
    for name in sorted(wanted.keys() - MAY_DIFFER):
        if wanted[name] != given.get(name):
            raise OptionError(
                f"{config.start_from} has {name}={given.get(name)!r}, but the original has "
                f"{wanted[name]!r}; start from an adaptation of the same original.",
                option="start_from",
                value=str(config.start_from),
            )


def _text_settings(config: AdaptConfig, training: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide the texts."""
    source = None if config.texts_from is None else str(config.texts_from)
    chosen = {name: getattr(config, name) for name in config.fixed_settings()}
    return chosen | {"texts_from": source, "seed": training.data.seed}


def _check_settings(config: AdaptConfig, training: TrainConfig) -> None:
    """Raise if the directory was started with different text settings."""
    path = config.out / SETTINGS
    # Without an original, an earlier try failed and nothing depends on its settings.
    if not path.is_file() or not (config.out / "original" / ORIGINAL).is_file():
        return
    stored = read_json(path, limit=MIB, error=RunError)
    if stored.get("texts_from") == "None":  # as earlier versions wrote it
        stored["texts_from"] = None
    for name, value in _text_settings(config, training).items():
        if stored.get(name) != value:
            raise OptionError(
                f"{config.out} was started {_change(name, stored.get(name), value)}; "
                "continue with the same value, or choose another directory.",
                option=name,
                value=value,
            )


def _change(name: str, before: Any, now: Any) -> str:
    """Return in words how a setting differs."""
    if before is None:
        return f"without {name}, not with {name}={now!r}"
    return f"with {name}={before!r}, not {'without it' if now is None else repr(now)}"


def _store_settings(config: AdaptConfig, training: TrainConfig, original: Original) -> None:
    """Check what the texts need, then store their settings.

    Settings that cannot work are not stored, so that the next try may have others.
    """
    text_length(config, original)
    choose_filters(config.filters)
    if config.stage != "original":
        unseen_texts(_excluded(config), lambda text: [])
        if config.texts_from is not None:
            read_pairs(config.texts_from)
    stored = json.dumps(_text_settings(config, training), indent=2) + "\n"
    write_text(config.out / SETTINGS, stored, error=RunError)


def _excluded(config: AdaptConfig) -> list[str]:
    return [name for name in config.exclude.split(",") if name]


# ---------------------------------------------------------------- the original


def prepare_original(config: AdaptConfig, training: TrainConfig, device: torch.device) -> Original:
    """Read the original, store the settings, prune its vocabulary if requested, and save it."""
    folder = config.out / "original"
    if (folder / ORIGINAL).is_file():
        return load_original(folder)
    original = read_original(config.original)
    _store_settings(config, training, original)
    if config.vocabulary is not None and config.vocabulary < original.model.vocab_size:
        _print(f"finding the {config.vocabulary} tokens that {config.original.name} uses most")
        begin = [original.end_id if original.bos_id is None else original.bos_id]
        writer = Writer(original, device=device)
        prompts = [begin] * config.vocabulary_texts
        texts = write_texts(writer, prompts, config, seed=(VOCABULARY,))
        rows = [[*text.prompt, *text.answer.tolist()] for text in texts]
        usage = expected_usage(original, rows, device)
        pruned = prune(original, usage, config.vocabulary)
        original = pruned.original
        _add_facts(config.out, vocabulary=original.model.vocab_size, coverage=pruned.coverage)
        _print(f"{original.model.vocab_size} tokens cover {pruned.coverage:.2%} of its texts")
    save_original(original, folder)
    return original


# ---------------------------------------------------------------- the rows


def prepare_rows(
    config: AdaptConfig,
    training: TrainConfig,
    original: Original,
    *,
    limit: float = float("inf"),
) -> bool:
    """Write or read the texts, choose the held-out ones, and check the overlap.

    Return whether all are done. After `limit`, a value of the monotonic clock, it stops before the
    next batch.
    """
    folder = config.out / "rows"
    if Rows.exist(folder / "train"):
        return True
    folder.mkdir(exist_ok=True)
    np.save(folder / "end.npy", np.array(original.end_id))
    if config.texts_from is not None and not _excluded(config):
        _print(NOT_EXCLUDED)
    texts = AdaptTexts(config, training, original, limit=limit)
    found = texts.prepare(folder)
    if found is None:
        return False
    rows, held_out, unseen, templates = found
    encode = original.tokenizer.encode
    others = unseen_texts(
        _excluded(config), lambda text: encode(text, add_special_tokens=False).ids
    )
    # Each kind has its own templates: one benchmark's instructions are rare among all texts.
    parts = [unseen, *(Rows.pack(texts) for texts in others.values())]
    found = [
        overlapping_rows(rows.contents, parts[0], templates=templates),
        *(overlapping_rows(rows.contents, part) for part in parts[1:]),
    ]
    shared = np.logical_or.reduce(found)
    named = zip(("held-out prompts", *others), found, strict=True)
    counts = [f"{int(hits.sum())} with {name}" for name, hits in named if hits.any()]
    _print(
        f"{int(shared.sum())} of {len(shared)} training texts share a run of {NGRAM} tokens with "
        f"{len(unseen)} held-out prompts or {sum(map(len, parts[1:]))} excluded texts, and are "
        f"left out{': ' if counts else ''}{', '.join(counts)}"
    )
    kept = rows.rows.take(np.flatnonzero(~shared)) if shared.any() else rows.rows
    if not len(kept):
        raise OptionError("No training text is left after the overlap check; use other data.")
    held_out.save(folder / "held-out")
    _add_facts(
        config.out,
        texts=len(kept),
        tokens=len(kept.tokens),
        overlap=int(shared.sum()),
        held_out=len(held_out),
        excluded=sum(map(len, others.values())),
    )
    kept.save(folder / "train")
    return True


class AdaptRows(NamedTuple):
    """Rows for training, and their words alone for the overlap check."""

    rows: Rows
    contents: Rows


class Prepared(NamedTuple):
    """The texts of an adaptation, before the overlap check."""

    rows: AdaptRows
    held_out: Rows
    prompts: Rows  # of the held-out rows, which no training text may repeat
    templates: np.ndarray | None = None  # hashes of the runs that many texts share


class HeldOut(NamedTuple):
    """Held-out texts and those that are left for training."""

    held: list[Example]
    used: list[Example]
    prompts: Rows  # of the held-out texts
    templates: np.ndarray


class AdaptTexts:
    """The texts of an adaptation: written by the original, or read from a file."""

    def __init__(
        self,
        config: AdaptConfig,
        training: TrainConfig,
        original: Original,
        *,
        limit: float,
    ) -> None:
        self.config, self.data, self.original = config, training.data, original
        self.limit = limit
        self.filters = choose_filters(config.filters)
        self._device = resolve_device(training.device)

    @cached_property
    def writer(self) -> Writer:
        """The original on the device, in the precision set by `write_dtype`."""
        dtype = resolve_dtype(self.config.write_dtype)
        return Writer(self.original, device=self._device, dtype=dtype)

    def prepare(self, folder: Path) -> Prepared | None:
        """Return rows for training and held-out rows; None if time has run out."""
        config = self.config
        if config.texts_from is None:
            return self._from_nothing(folder)
        examples = read_examples(
            config.texts_from,
            self.original,
            config.out / "original",
            longest=self.data.buckets[-1],
        )
        if (most := config.longest_answer) is not None:
            count = len(examples)
            examples = [one for one in examples if len(one.answer) <= most]
            left_out = count - len(examples)
            _print(f"{left_out} of {count} texts have an answer of over {most} tokens, left out")
        if len(examples) < 2:
            raise OptionError(f"data {str(config.texts_from)!r} holds only one text.")
        held, used, prompts, templates = self._hold_out(examples)
        if examples[0].answer:
            return Prepared(_example_rows(used), _example_rows(held).rows, prompts, templates)
        rows = self._write_parts(folder, [item.prompt for item in used])
        if rows is None:
            return None
        answered = self._write([item.prompt for item in held], seed=(HELD_OUT,))
        words = {tuple(item.prompt): item.content for item in used}
        contents = [
            [*words[tuple(row[:start].tolist())], *row[start:].tolist()]
            for row, start in zip(rows, rows.prompts.tolist(), strict=True)
        ]
        held_out = self._pack(answered, prompts=True)
        return Prepared(AdaptRows(rows, Rows.pack(contents)), held_out, prompts, templates)

    def _hold_out(self, examples: Sequence[Example]) -> HeldOut:
        """Choose the held-out texts among more candidates, those that overlap with few others.

        A text that overlaps with a held-out one is not trained on, so a held-out text that many
        others resemble would cost many. Each kind gets as many as in a random draw, beginning with
        those that cost the fewest; a kind is how a prompt begins. In a text without runs to
        compare, no repetition would be found, so it comes last. Copies of a held-out text are
        never trained on.
        """
        config = self.config
        order = np.random.default_rng(self.data.seed).permutation(len(examples)).tolist()
        count = max(1, min(config.held_out, len(examples) // 10))
        drawn = [examples[i] for i in order]
        pool, cut = drawn[: CANDIDATES * count], config.prompt_tokens
        prompts = Rows.pack([item.content if item.prompt else item.content[:cut] for item in pool])
        kinds = [tuple(item.content[:BEGINNING]) if item.prompt else () for item in pool]
        templates = _templates(prompts, kinds, held_out=count)
        shared = shared_rows(
            prompts, Rows.pack([item.content for item in drawn]), templates=templates
        )
        ranked: list[int] = np.lexsort((shared.rows, shared.runs == 0)).tolist()
        wanted, best = Counter(kinds[:count]), list[int]()
        for place in ranked:
            if wanted[kinds[place]]:
                wanted[kinds[place]] -= 1
                best.append(place)
        clean = sum(bool(shared.runs[place]) and not shared.rows[place] for place in best)
        _print(
            f"{clean} of {count} held-out texts share no run of {NGRAM} tokens with another text; "
            f"they are chosen from {len(pool)}"
        )
        held = [pool[place] for place in best]
        known = {tuple(item.content) for item in held}
        used = [item for item in drawn if tuple(item.content) not in known]
        return HeldOut(held, used, prompts.take(np.array(best)), templates)

    def _from_nothing(self, folder: Path) -> Prepared | None:
        """Let the original write, starting from its BOS token only.

        Held-out prompts are chosen among those that share no run of tokens with a training text,
        because the openings of short texts are often the same.
        """
        config = self.config
        rows = self._write_parts(folder, [self.begin])
        if rows is None:
            return None
        texts = self._write([self.begin] * config.held_out_texts, seed=(HELD_OUT,))
        candidates = self._pack(texts)
        prompts = Rows.pack([row[: config.prompt_tokens + 1] for row in candidates])
        clean = clean_rows(prompts, rows)
        chosen = np.flatnonzero(clean)[: config.held_out]
        if not len(chosen):
            raise OptionError(
                "Every held-out prompt shares a run of 13 tokens with a training text; write more "
                "held-out texts, or longer prompts.",
                option="held_out_texts",
                value=config.held_out_texts,
            )
        _print(f"{int(clean.sum())} of {len(clean)} held-out prompts overlap with no training text")
        return Prepared(AdaptRows(rows, rows), candidates.take(chosen), prompts.take(chosen))

    @property
    def begin(self) -> list[int]:
        """The prompt of a text that is written without a prompt."""
        bos, end = self.original.bos_id, self.original.end_id
        return [end if bos is None else bos]

    def _write_parts(self, folder: Path, prompts: Sequence[list[int]]) -> Rows | None:
        """Write all texts in batches and save each batch. Return None if time has run out.

        If there are fewer prompts than texts, the prompts repeat in order.
        """
        config, size = self.config, self.config.write_batch
        parts: list[Rows] = []
        for number, first in enumerate(range(0, config.texts, size)):
            part = folder / "parts" / f"{number:05d}"
            if not Rows.exist(part):
                if time.monotonic() >= self.limit:
                    _print(f"{number} batches of texts are written; run it again to continue")
                    return None
                begin = time.monotonic()
                last = min(first + size, config.texts)
                chosen = [prompts[index % len(prompts)] for index in range(first, last)]
                texts = self._write(chosen, seed=(TRAINING, self.data.seed, number))
                rows = self._pack(texts, prompts=config.texts_from is not None)
                rows.save(part)
                pace = len(rows.tokens) / (time.monotonic() - begin)
                _print(f"wrote {part.name}: {len(rows)} texts, {pace / 1e3:.0f}k tokens/s")
            parts.append(Rows.load(part))
        return Rows.join(parts)

    def _write(self, prompts: Sequence[list[int]], *, seed: tuple[int, ...]) -> list[WrittenText]:
        """Let the original continue the prompts, a batch at a time."""
        return write_texts(self.writer, prompts, self.config, seed=seed)

    def _pack(self, texts: Sequence[WrittenText], *, prompts: bool = False) -> Rows:
        """Return the texts that pass every filter as rows, with the end token where there is one.

        With `prompts`, a row's prompt stays visible in training; otherwise a random prefix does.
        """
        kept = [text for text in texts if all(passes(text) for passes in self.filters)]
        end = [self.original.end_id]
        rows = [np.concatenate([text.prompt, text.answer, end[: text.finished]]) for text in kept]
        return Rows.pack(rows, [len(text.prompt) if prompts else 0 for text in kept])


def _templates(prompts: Rows, kinds: Sequence[tuple[int, ...]], *, held_out: int) -> np.ndarray:
    """Return the runs that belong to templates: of all texts, and of most texts of a kind.

    A kind can be too rare for its instructions to be common among all texts.
    """
    # The same share of the texts as the overlap check needs for the held-out ones alone.
    share = max(TEMPLATE_SHARE, TEMPLATE_TEXTS / held_out)
    found = template_runs(prompts, share=share)
    places: dict[tuple[int, ...], list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    for some in places.values():
        mine = template_runs(prompts.take(np.array(some)), share=TEMPLATE_OF_KIND)
        found = np.union1d(found, mine)
    return found


def _example_rows(examples: Sequence[Example]) -> AdaptRows:
    rows = Rows.pack(
        [item.prompt + item.answer for item in examples], [len(item.prompt) for item in examples]
    )
    return AdaptRows(rows, Rows.pack([item.content for item in examples]))


def text_length(config: AdaptConfig, original: Original) -> int:
    """Return the configured maximum of tokens per text, or the context up to `MAX_TEXT`."""
    context = original.model.max_length
    if config.text_length is None:
        return min(context, MAX_TEXT)
    if config.text_length > context:
        raise OptionError(
            f"text_length must be at most {context}, the original's context, "
            f"not {config.text_length}.",
            option="text_length",
            value=config.text_length,
        )
    return config.text_length


def write_texts(
    writer: Writer, prompts: Sequence[list[int]], config: AdaptConfig, *, seed: tuple[int, ...]
) -> list[WrittenText]:
    """Let the original continue prompts, a batch at a time."""
    length = text_length(config, writer.original)
    texts: list[WrittenText] = []
    for first in range(0, len(prompts), config.write_batch):
        batch = prompts[first : first + config.write_batch]
        # A generator on a CPU reads only 32 bits of a seed, so all numbers are mixed into them.
        mixed = int(np.random.SeedSequence((*seed, first)).generate_state(1)[0])
        texts += writer.write(batch, length=length, temperature=config.temperature, seed=mixed)
    return texts


def choose_filters(names: str) -> list[Filter]:
    """Return filters by their names, such as `finished,varied`."""
    chosen: list[Filter] = []
    for name in filter(None, names.split(",")):
        if name not in FILTERS:
            raise OptionError(
                f"There is no filter {name!r}{did_you_mean(name, FILTERS)}; "
                f"there are: {', '.join(FILTERS)}.",
                option="filters",
                value=names,
            )
        chosen.append(FILTERS[name])
    return chosen


# ---------------------------------------------------------------- the result


def publish(config: AdaptConfig, training: TrainConfig, original: Original) -> None:
    """Write the judge, the held-out prompts and the card next to the exported model."""
    folder = config.out / "model"
    if config.judge:
        Judge(original.model, original.never_written).save(folder / "judge")
    rows = Rows.load(config.out / "rows" / "held-out")
    decode = original.tokenizer.decode
    lines: list[str] = []
    for row, start in zip(rows, rows.prompts.tolist(), strict=True):
        ids = row.tolist()
        finished = ids[-1] == original.end_id
        ids = ids[:-1] if finished else ids
        cut = start or config.prompt_tokens + 1
        item = {"prompt": decode(ids[:cut]).strip(), "ids": ids[:cut], "text": decode(ids)}
        item["finished"] = finished
        lines.append(json.dumps(item, ensure_ascii=False) + "\n")
    write_text(folder / "prompts.jsonl", "".join(lines), error=RunError)
    facts = read_json(config.out / FACTS, limit=MIB, error=RunError)
    write_card(folder, config=config, training=training, facts=facts, log=config.out / "log.jsonl")


def _add_facts(folder: Path, **facts: Any) -> None:
    """Add facts for the card."""
    path = folder / FACTS
    known = read_json(path, limit=MIB, error=RunError) if path.is_file() else {}
    write_text(path, json.dumps(known | facts, indent=2) + "\n", error=RunError)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
