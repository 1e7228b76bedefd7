"""Streamers of transformers: settled text once, drafts at every step, an end in any case."""

from __future__ import annotations

import re
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


class Settled(BaseStreamer):
    """Keeps what it receives."""

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


class Drafts(Settled):
    def __init__(self) -> None:
        super().__init__()
        self.drafts: list[Any] = []

    def put_draft(self, value: Any, **others: Any) -> None:
        assert not others
        self.drafts.append((len(self.answer), value))


@pytest.mark.parametrize(
    "strategy", ["wavefront(size=8)", "standard", "block(size=8)", "rcr", "tide"]
)
def test_settled_text_comes_once_and_whole(model: Any, prompt: Any, strategy: str) -> None:
    given: Any = {"strategy": strategy, "max_new_tokens": 32, "custom_generate": hf.generate}
    heard = Settled()
    found = model.generate(**prompt, streamer=heard, **given)
    length = prompt["input_ids"].shape[1]
    assert heard.puts[0].equal(prompt["input_ids"])
    assert heard.answer == found[0, length:].tolist()
    assert heard.ends == 1
    assert found.equal(model.generate(**prompt, **given))


def test_a_draft_is_what_follows_the_settled_text(model: Any, words: Any, prompt: Any) -> None:
    heard, places = Drafts(), 32
    found = model.generate(**prompt, streamer=heard, max_new_tokens=places, eos="keep")
    answer = found[0, prompt["input_ids"].shape[1] :]
    assert heard.answer == answer.tolist()
    mask = words.mask_token_id
    assert len(heard.drafts) > 8
    open_places = []
    for settled, draft in heard.drafts:
        assert draft.shape == (1, places - settled)
        decided = draft[0] != mask
        assert draft[0][decided].equal(answer[settled:][decided])
        open_places.append(int((~decided).sum()))
    assert open_places == sorted(open_places, reverse=True)
    assert open_places[0] > open_places[-1]


def test_text_comes_out_of_a_text_streamer(
    model: Any, words: Any, prompt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(words, skip_prompt=True, skip_special_tokens=True)
    found = model.generate(**prompt, streamer=streamer, max_new_tokens=24)
    told = capsys.readouterr().out
    text = words.decode(found[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert told == text + "\n"


def test_text_comes_out_of_an_iterator_in_a_thread(model: Any, words: Any, prompt: Any) -> None:
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
def test_the_wave_is_shown(
    kind: Any, model: Any, words: Any, prompt: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    given: Any = {"max_new_tokens": 24, "eos": "keep"}
    found = model.generate(**prompt, streamer=kind(words, skip_prompt=True), **given)
    told = capsys.readouterr().out
    text = words.decode(found[0, prompt["input_ids"].shape[1] :])
    drafts = re.findall("\x1b7(.*?)\x1b\\[0m", told, re.DOTALL)
    assert len(drafts) > 8
    sign = "░" if kind is hf.WaveStreamer else "[MASK]"
    assert all(sign in draft for draft in drafts)
    # Every draft is taken back; what then remains on the screen is the answer.
    assert told.count("\x1b8") == told.count("\x1b7")
    assert re.sub("\x1b7.*?\x1b8\x1b\\[J", "", told, flags=re.DOTALL) == text + "\n"


def test_one_row_at_a_time(model: Any, words: Any, prompt: Any) -> None:
    ids = prompt["input_ids"].expand(2, -1)
    with pytest.raises(OptionError, match="one row"):
        model.generate(
            ids, attention_mask=torch.ones_like(ids), streamer=Settled(), max_new_tokens=4
        )
    ids = torch.tensor([[5, words.mask_token_id, 7]])
    with pytest.raises(OptionError, match="infill"):
        model.generate(ids, attention_mask=torch.ones_like(ids), streamer=Settled(), infill=True)


def test_an_end_comes_whatever_happens(model: Any, prompt: Any) -> None:
    class Broken(Settled):
        def put(self, value: Any) -> None:
            super().put(value)
            if len(self.puts) > 1:
                raise OSError("the reader is gone")

    heard = Broken()
    with pytest.raises(OSError, match="gone"):
        model.generate(**prompt, streamer=heard, max_new_tokens=16)
    assert heard.ends == 1
