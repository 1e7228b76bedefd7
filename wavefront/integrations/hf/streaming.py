"""Pass a decode to a transformers streamer: the final text, and the draft after it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import TextStreamer

from wavefront.core.canvas import is_any
from wavefront.core.errors import OptionError
from wavefront.core.state import Step


class StreamerFeed:
    """Passes every step of one row to a streamer.

    `put` receives the final tokens from the left, each once, up to the first stop token. A streamer
    with `put_draft` also receives all tokens after them at every step. Undecided positions hold the
    mask token.
    """

    def __init__(
        self, streamer: Any, prompt: Tensor, *, stop_ids: Sequence[int], mask_id: int
    ) -> None:
        if prompt.shape[0] != 1:
            raise OptionError(
                f"A streamer shows one row, but there are {prompt.shape[0]}: generate them one by "
                "one, or leave out streamer."
            )
        self.streamer, self.stop_ids = streamer, stop_ids
        self._drafts = hasattr(streamer, "put_draft")
        self._sent, self._ended = 0, False
        if isinstance(streamer, WaveStreamer) and streamer.mask_id is None:
            streamer.mask_id = mask_id
        streamer.put(prompt.cpu())

    def watch(self, steps: Iterable[Step], new_tokens: int) -> Iterable[Step]:
        """Yield the steps unchanged, and pass each to the streamer. Always call its `end`."""
        try:
            for step in steps:
                # The last block of a block-causal model may hold more positions than requested.
                slot = step.canvas.slot[0]
                answer = (slot >= 0) & (slot < new_tokens)
                self._send(step.canvas.tokens[0, answer].cpu(), step.final[0, answer].cpu())
                yield step
        finally:
            self.streamer.end()

    def _send(self, tokens: Tensor, final: Tensor) -> None:
        if self._ended:
            return
        ready = int(final.long().cumprod(0).sum())
        fresh = tokens[self._sent : ready]
        stops = is_any(fresh, self.stop_ids).nonzero()
        if len(stops):
            fresh, self._ended = fresh[: int(stops[0]) + 1], True
        if len(fresh):
            self.streamer.put(fresh)
            self._sent += len(fresh)
        if self._drafts and not self._ended and ready < len(tokens):
            self.streamer.put_draft(tokens[None, ready:])


class WaveStreamer(TextStreamer):
    """Prints final text, and after it a draft that every step replaces.

    It works like transformers' `TextDiffusionStreamer`, but in every version of transformers, and
    it shows a masked position as one character. In a file or a pipe it prints final text only.
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
        """`mask_id` defaults to the decoding model's mask id."""
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self.sleep_time, self.sign, self.mask_id = sleep_time, sign, mask_id
        self._shown = False

    def put_draft(self, value: Tensor, **others: Any) -> None:
        """Show the draft of one row instead of the previous draft, on a terminal only."""
        if not sys.stdout.isatty():
            return
        self._erase()
        print(f"{self.SAVE}{self.DIM}{self._text(value)}{self.PLAIN}", end="", flush=True)
        self._shown = True
        time.sleep(self.sleep_time or 0)

    def _text(self, value: Tensor) -> str:
        parts = []
        for masked, run in groupby(value.flatten().tolist(), key=lambda id: id == self.mask_id):
            ids = list(run)
            text = self.tokenizer.decode(ids, **self.decode_kwargs)
            parts.append(self.sign * len(ids) if masked else str(text))
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
    except ImportError:  # not in transformers 4
        TextDiffusionStreamer = WaveStreamer
