"""A decode on its way to a streamer of transformers: what is settled, and the draft beyond it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import TextStreamer

from wavefront.core.canvas import is_any
from wavefront.core.errors import OptionError
from wavefront.core.state import Step


class Feed:
    """Tells a streamer of every step of one row.

    `put` receives what is settled from the left, each token once and never to be revised, up to
    the first stop token. A streamer with `put_draft` also receives all that follows, as it stands:
    the mask token where nothing is decided yet.
    """

    def __init__(
        self, streamer: Any, prompt: Tensor, *, stop_ids: Sequence[int], mask_id: int
    ) -> None:
        if prompt.shape[0] != 1:
            raise OptionError(
                f"A streamer shows one row and there are {prompt.shape[0]}: generate them one by "
                "one, or leave out streamer."
            )
        self.streamer, self.stop_ids = streamer, stop_ids
        self._drafts = hasattr(streamer, "put_draft")
        self._told, self._ended = 0, False
        if isinstance(streamer, WaveStreamer) and streamer.mask_id is None:
            streamer.mask_id = mask_id
        streamer.put(prompt.cpu())

    def watch(self, steps: Iterable[Step], places: int) -> Iterable[Step]:
        """The steps as they are, each told to the streamer; its end too, whatever happens."""
        try:
            for step in steps:
                self._tell(step.canvas.tokens[0, -places:].cpu(), step.final[0, -places:].cpu())
                yield step
        finally:
            self.streamer.end()

    def _tell(self, tokens: Tensor, final: Tensor) -> None:
        if self._ended:
            return
        settled = int(final.long().cumprod(0).sum())
        fresh = tokens[self._told : settled]
        stops = is_any(fresh, self.stop_ids).nonzero()
        if len(stops):
            fresh, self._ended = fresh[: int(stops[0]) + 1], True
        if len(fresh):
            self.streamer.put(fresh)
            self._told += len(fresh)
        if self._drafts and not self._ended and settled < len(tokens):
            self.streamer.put_draft(tokens[None, settled:])


class WaveStreamer(TextStreamer):
    """Prints settled text for good, and the draft after it until the next one takes its place.

    What transformers' `TextDiffusionStreamer` does, with a short sign for an open place instead of
    the mask token's name, and for every version.
    """

    SAVE, BACK, DIM, PLAIN = "\x1b7", "\x1b8\x1b[J", "\x1b[2m", "\x1b[0m"

    def __init__(
        self,
        tokenizer: Any,
        skip_prompt: bool = False,
        sleep_time: float | None = None,
        *,
        sign: str = "░",
        mask_id: int | None = None,
        **decode_kwargs: Any,
    ) -> None:
        """`mask_id` comes from the model that is decoded with, unless you say it."""
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self.sleep_time, self.sign, self.mask_id = sleep_time, sign, mask_id
        self._shown = False

    def put_draft(self, value: Tensor, **others: Any) -> None:
        """Show the draft, of one row, in the place of the one before."""
        self._erase()
        print(f"{self.SAVE}{self.DIM}{self._text(value)}{self.PLAIN}", end="", flush=True)
        self._shown = True
        time.sleep(self.sleep_time or 0)

    def _text(self, value: Tensor) -> str:
        parts = []
        for open_, run in groupby(value.flatten().tolist(), key=lambda id: id == self.mask_id):
            ids = list(run)
            text = self.tokenizer.decode(ids, **self.decode_kwargs)
            parts.append(self.sign * len(ids) if open_ else str(text))
        return "".join(parts)

    def put(self, value: Tensor) -> None:
        self._erase()
        super().put(value)

    def end(self) -> None:
        self._erase()
        super().end()

    def _erase(self) -> None:
        if self._shown:
            print(self.BACK, end="")
            self._shown = False


if TYPE_CHECKING:
    TextDiffusionStreamer = WaveStreamer
else:
    try:
        from transformers import TextDiffusionStreamer
    except ImportError:  # transformers 4 has none
        TextDiffusionStreamer = WaveStreamer
