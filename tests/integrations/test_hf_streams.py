"""Streamers of transformers: final text once, drafts at every step, and always an end."""

from __future__ import annotations

import re
import sys
import threading
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from helpers.masked_lms import make, tokenizer
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from wavefront.core.errors import OptionError
from wavefront.integrations import hf


@pytest.fixture(scope="module")
def words() -> Any:
    return tokenizer()


@pytest.fixture(scope="module")
def model(words: Any) -> Any:
    return hf.enable(make("Bert", seed=1), words)


@pytest.fixture(scope="module")
def prompt(words: Any) -> Any:
    return words("the cat sat on", return_tensors="pt")


class Recorder(BaseStreamer):
    """Records what it receives."""

    def __init__(self) -> None:
        self.puts: list[Any] = []
        self.ends = 0

    def put(self, value: Any) -> None:
        self.puts.append(value)

    def end(self) -> None:
        self.ends += 1

    @property
    def answer(self) -> list[int]:
        return [token for value in self.puts[1:] for token in value.tolist()]


class DraftRecorder(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.drafts: list[Any] = []

    def put_draft(self, value: Any, **others: Any) -> None:
        assert not others
        self.drafts.append((len(self.answer), value))


@pytest.mark.parametrize(
    "strategy",
    [
        "wavefront(size=8)",
        "standard",
        "block(size=8)",
        "rcr",
        "tide",
        "tide(cascade_rounds=0, horizon=0, selector=quota())",
    ],
)
def test_final_text_is_put_once_and_completely(model: Any, prompt: Any, strategy: str) -> None:
    given: Any = {"strategy": strategy, "max_new_tokens": 32, "custom_generate": hf.generate}
    streamer = Recorder()
    found = model.generate(**prompt, streamer=streamer, **given)
    length = prompt["input_ids"].shape[1]
    assert streamer.puts[0].equal(prompt["input_ids"])
    assert streamer.answer == found[0, length:].tolist()
    assert streamer.ends == 1
    assert found.equal(model.generate(**prompt, **given))


def test_draft_follows_the_final_text(model: Any, words: Any, prompt: Any) -> None:
    streamer, count = DraftRecorder(), 32
    found = model.generate(**prompt, streamer=streamer, max_new_tokens=count, eos="keep")
    answer = found[0, prompt["input_ids"].shape[1] :]
    assert streamer.answer == answer.tolist()
    mask = words.mask_token_id
    assert len(streamer.drafts) > 8
    masked_counts = []
    for final, draft in streamer.drafts:
        assert draft.shape == (1, count - final)
        decided = draft[0] != mask
        assert draft[0][decided].equal(answer[final:][decided])
        masked_counts.append(int((~decided).sum()))
    assert masked_counts == sorted(masked_counts, reverse=True)
    assert masked_counts[0] > masked_counts[-1]


def test_text_streamer_prints_the_answer(
    model: Any, words: Any, prompt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(words, skip_prompt=True, skip_special_tokens=True)
    found = model.generate(**prompt, streamer=streamer, max_new_tokens=24)
    printed = capsys.readouterr().out
    text = words.decode(found[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert printed == text + "\n"


def test_iterator_streamer_works_in_a_thread(model: Any, words: Any, prompt: Any) -> None:
    streamer = TextIteratorStreamer(words, skip_prompt=True, skip_special_tokens=True, timeout=60)
    given = {**prompt, "streamer": streamer, "max_new_tokens": 24, "strategy": "left_to_right"}
    thread = threading.Thread(target=model.generate, kwargs=given)
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert len([piece for piece in pieces if piece]) > 2
    found = model.generate(**prompt, max_new_tokens=24, strategy="left_to_right")
    assert "".join(pieces).split() == words.decode(found[0], skip_special_tokens=True).split()[4:]


@pytest.mark.parametrize("kind", [hf.TextDiffusionStreamer, hf.WaveStreamer])
def test_drafts_are_shown_and_erased(
    kind: Any,
    model: Any,
    words: Any,
    prompt: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    given: Any = {"max_new_tokens": 24, "eos": "keep"}
    found = model.generate(**prompt, streamer=kind(words, skip_prompt=True), **given)
    printed = capsys.readouterr().out
    text = words.decode(found[0, prompt["input_ids"].shape[1] :])
    drafts = re.findall("\x1b7(.*?)\x1b\\[0m", printed, re.DOTALL)
    assert len(drafts) > 8
    sign = "░" if kind is hf.WaveStreamer else "[MASK]"
    assert all(sign in draft for draft in drafts)
    # Every draft is erased, and the answer remains on the screen.
    assert printed.count("\x1b8") == printed.count("\x1b7")
    assert re.sub("\x1b7.*?\x1b8\x1b\\[J", "", printed, flags=re.DOTALL) == text + "\n"


def test_streamer_writes_only_text_into_a_pipe(
    model: Any, words: Any, prompt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = hf.WaveStreamer(words, skip_prompt=True)
    found = model.generate(**prompt, streamer=streamer, max_new_tokens=8, eos="keep")
    printed = capsys.readouterr().out
    assert printed == words.decode(found[0, prompt["input_ids"].shape[1] :]) + "\n"


def test_streamer_needs_one_row_and_no_infill(model: Any, words: Any, prompt: Any) -> None:
    ids = prompt["input_ids"].expand(2, -1)
    with pytest.raises(OptionError, match="one row"):
        model.generate(
            ids, attention_mask=torch.ones_like(ids), streamer=Recorder(), max_new_tokens=4
        )
    ids = torch.tensor([[5, words.mask_token_id, 7]])
    with pytest.raises(OptionError, match="infill"):
        model.generate(ids, attention_mask=torch.ones_like(ids), streamer=Recorder(), infill=True)


def test_streamer_ends_after_an_error(model: Any, prompt: Any) -> None:
    class Broken(Recorder):
        def put(self, value: Any) -> None:
            super().put(value)
            if len(self.puts) > 1:
                raise OSError("the reader is gone")

    streamer = Broken()
    with pytest.raises(OSError, match="gone"):
        model.generate(**prompt, streamer=streamer, max_new_tokens=16)
    assert streamer.ends == 1
