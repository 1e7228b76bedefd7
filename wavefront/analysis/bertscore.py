"""BERTScore: how well the tokens of two texts match in an encoder's space.

Every token of the candidate is matched with the nearest token of the reference by cosine, and vice
versa. Precision is the mean over the candidate's tokens, recall the mean over the reference's, and
F1 their harmonic mean. The two end tokens can be matched but have no weight.

**idf** weights tokens by log((N + 1) / (n + 1)), where n of the N references contain the token.
**Rescaling** maps a score s to (s - b) / (1 - b), where b is the score of unrelated texts. It only
makes scores easier to read. **Several references**: each number is the maximum over the references.
**Empty text**: a candidate or reference without tokens scores 0 before rescaling.

Scores of two encoders, or of two layers, cannot be compared: `Scores.signature` names both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from wavefront.analysis.encoder import DEFAULT, KNOWN, Encoder
from wavefront.core.errors import OptionError, check_int

ENDS = 2  # end tokens of every text


class BertScore(NamedTuple):
    """Precision, recall and F1."""

    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Scores:
    """The scores of pairs, in order, and the settings of the measurement."""

    each: tuple[BertScore, ...]
    encoder: str
    layer: int
    idf: bool
    rescaled: bool

    @property
    def mean(self) -> BertScore:
        """The mean over all pairs."""
        return BertScore(
            *(math.fsum(column) / len(self.each) for column in zip(*self.each, strict=True))
        )

    @property
    def signature(self) -> str:
        """The settings to publish with a score."""
        idf, rescaled = ("yes" if on else "no" for on in (self.idf, self.rescaled))
        return f"{self.encoder} layer {self.layer}, idf {idf}, rescaled {rescaled}"


def score(
    candidates: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    encoder: str | Encoder = DEFAULT,
    *,
    layer: int | None = None,
    idf: bool = False,
    rescale: bool = False,
    baseline: str | Path | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> Scores:
    """Score each candidate against its reference, or against the best of several.

    `rescale` uses the published baseline of a known encoder. `baseline` is a file with another one:
    lines of `layer,precision,recall,F1` below a heading.
    """
    pairs = _pairs(candidates, references)
    check_int("batch_size", batch_size, 1)
    name = encoder.name if isinstance(encoder, Encoder) else encoder
    if isinstance(encoder, Encoder):
        if layer not in (None, encoder.layer):
            raise OptionError(f"The encoder reads layer {encoder.layer}; leave out layer={layer}.")
    else:
        encoder = Encoder(encoder, layer=layer, device=device)
    floor = _baseline(name, encoder.layer, rescale=rescale, file=baseline)
    weights = _Weights(encoder, [one for _, group in pairs for one in group], idf=idf)
    flat = [(number, c, r) for number, (c, group) in enumerate(pairs) for r in group]
    best = [BertScore(-math.inf, -math.inf, -math.inf)] * len(pairs)
    for number, found in _match(encoder, flat, weights, batch_size=batch_size):
        best[number] = BertScore(*map(max, best[number], found))
    if floor is not None:
        best = [
            BertScore(*((s - b) / (1 - b) for s, b in zip(one, floor, strict=True))) for one in best
        ]
    return Scores(tuple(best), name, encoder.layer, idf, floor is not None)


def _pairs(candidates: object, references: object) -> list[tuple[str, list[str]]]:
    for name, texts in (("candidates", candidates), ("references", references)):
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
            raise OptionError(f"{name} must be a list of at least one string.")
    assert isinstance(candidates, Sequence)
    assert isinstance(references, Sequence)
    if len(candidates) != len(references):
        raise OptionError(
            f"There are {len(candidates)} candidates and {len(references)} references. Pass one "
            "reference, or a list of them, for each candidate."
        )
    groups = [
        [reference] if isinstance(reference, str) else list(reference) for reference in references
    ]
    for number, (candidate, group) in enumerate(zip(candidates, groups, strict=True), 1):
        if not group or not all(isinstance(one, str) for one in (candidate, *group)):
            raise OptionError(f"Pair {number} needs one text and at least one reference text.")
    return list(zip(candidates, groups, strict=True))


class _Weights:
    """The weights of tokens."""

    def __init__(self, encoder: Encoder, references: Sequence[str], *, idf: bool) -> None:
        self._ends, self._idf = encoder.ends, idf
        self._documents, self._holding = len(references), Counter[int]()
        if idf and len(references) < 2:
            raise OptionError("idf needs two or more references.")
        for text in references if idf else ():
            self._holding.update(set(encoder.ids(text)))

    def of(self, ids: Sequence[int], device: torch.device) -> Tensor:
        """Return weights that sum to one, (n,) float32.

        If every idf is zero, all tokens count equally. All are zero if the text has only end
        tokens.
        """
        plain = [0.0 if one in self._ends else 1.0 for one in ids]
        weights = [self._rarity(one) for one in ids] if self._idf else plain
        found = torch.tensor(weights if any(weights) else plain, device=device)
        return found / max(float(found.sum()), 1e-12)

    def _rarity(self, token: int) -> float:
        return math.log((self._documents + 1) / (self._holding[token] + 1))


def _match(
    encoder: Encoder,
    flat: Sequence[tuple[int, str, str]],
    weights: _Weights,
    *,
    batch_size: int,
) -> Iterator[tuple[int, BertScore]]:
    """Yield the scores of pairs by number, longest first, so that a batch has little padding."""
    ids = {text: encoder.ids(text) for _, *texts in flat for text in texts}
    ordered = sorted(flat, key=lambda one: -max(len(ids[one[1]]), len(ids[one[2]])))
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        texts = list(dict.fromkeys(text for _, *pair in batch for text in pair))
        states = dict(zip(texts, encoder.states([ids[text] for text in texts]), strict=True))
        for number, candidate, reference in batch:
            if min(len(ids[candidate]), len(ids[reference])) <= ENDS:
                yield number, BertScore(0.0, 0.0, 0.0)
                continue
            cosines = states[candidate] @ states[reference].T
            device = cosines.device
            precision = float(cosines.amax(1) @ weights.of(ids[candidate], device))
            recall = float(cosines.amax(0) @ weights.of(ids[reference], device))
            total = precision + recall
            yield (
                number,
                BertScore(precision, recall, 2 * precision * recall / total if total else 0.0),
            )


def _baseline(
    name: str, layer: int, *, rescale: bool, file: str | Path | None
) -> tuple[float, ...] | None:
    if file is not None:
        return _read_baseline(Path(file), layer)
    if not rescale:
        return None
    known = KNOWN.get(name)
    if known is None or known.baseline is None or known.layer != layer:
        raise OptionError(
            f"No baseline is known for {name!r} at layer {layer}. Pass a file as baseline=, or "
            "leave out rescale."
        )
    return known.baseline


def _read_baseline(file: Path, layer: int) -> tuple[float, ...]:
    try:
        rows = [
            line.split(",") for line in file.read_text("utf-8").splitlines()[1:] if line.strip()
        ]
        found = {int(row[0]): tuple(float(value) for value in row[1:4]) for row in rows}
    except (OSError, ValueError, IndexError) as error:
        raise OptionError(f"The baseline {str(file)!r} cannot be read: {error}.") from None
    if len(found.get(layer, ())) != 3 or max(found[layer]) >= 1:
        raise OptionError(f"{str(file)!r} needs a line {layer},P,R,F with numbers below 1.")
    return found[layer]
