"""The trainer: data layout, workers, schedule, resumption, tokenizer, export."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from wavefront.core.errors import CheckpointError, OptionError
from wavefront.models.loader import load_model
from wavefront.text.tokenizer import Tokenizer, prompt_ids
from wavefront.train import TrainConfig, run
from wavefront.train.__main__ import main, mixture
from wavefront.train.config import DataConfig
from wavefront.train.corpus import with_corpus
from wavefront.train.data import Batch, Source, share_out
from wavefront.train.export import architecture, build_model, export_run
from wavefront.train.lr_schedule import StepClock, WallClock, rate
from wavefront.train.optimizer import HIDDEN, build
from wavefront.train.prefetch import DataError, Feed
from wavefront.train.row_layout import MAX_CANVAS, MIN_CANVAS, Encoder, Pair, choose_bucket, fits
from wavefront.train.tokenizer import train_tokenizer, training_texts, write_tokenizer
from wavefront.train.train_step import Learner, Rows

TASKS = {"boolean_expressions": 1.0, "navigate": 1.0, "tracking_shuffled_objects_five_objects": 0.3}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small gain nothing from threads, and wait for one another on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(train_tokenizer(training_texts(samples=400, mixture=TASKS), 400), folder)
    return folder


def data(tokenizer: Path, **changes: Any) -> DataConfig:
    small = DataConfig(
        tokenizer=tokenizer, mixture=TASKS, tokens_per_step=768, buckets=(96, 192, 320), group=4
    )
    return replace(small, **changes)


def toy(tokenizer: Path, out: Path, **changes: Any) -> TrainConfig:
    small = TrainConfig(
        out=out,
        data=data(tokenizer, mixture={"boolean_expressions": 1.0}, buckets=(96, 128)),
        steps=12,
        width=32,
        layers=2,
        heads=2,
        mlp_width=48,
        warmup=3,
        lr=5e-3,
        ema=0.9,
        device="cpu",
        workers=0,
        save_every=4,
        log_every=2,
        quiet=True,
    )
    return replace(small, **changes)


def weights(state: Path) -> dict[str, torch.Tensor]:
    loaded = torch.load(state, weights_only=True)
    averages = {f"average {i}": part for i, part in enumerate(loaded["average"])}
    return loaded["model"] | averages


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


# ---------------------------------------------------------------- layout


def test_rows_are_prompt_answer_eot_eos(tokenizer: Path) -> None:
    source = Source(data(tokenizer, tokens_per_step=4096))
    special = source.encoder.special
    seen: Counter[int] = Counter()
    for batch in source.make_group(0) + source.make_group(1):
        rows, length = batch.tokens.shape
        assert rows == source.config.rows(length)
        for row, start in zip(batch.tokens.tolist(), batch.start.tolist(), strict=True):
            canvas = row[start:]
            assert MIN_CANVAS <= len(canvas) <= MAX_CANVAS
            assert row[0] == special.bos
            end = canvas.index(special.eot)
            assert special.eos not in canvas[:end], "the answer comes first"
            assert set(canvas[end + 1 :]) <= {special.eos}, "then nothing but EOS"
            assert special.eos not in row[:start]
            assert special.mask not in row
            seen[len(canvas)] += 1
    assert len(seen) > 40, "canvases come in many lengths"


def test_prompts_have_the_ids_of_the_chat_template(tokenizer: Path) -> None:
    encoder, reader = Encoder(tokenizer), Tokenizer.load(tokenizer)
    prompts = ["Is it?", "  two\n\nlines <|eot_id|>  ", "def f(x):\n    return 1", "12 + 345"]
    pairs = encoder.pairs([(prompt, "yes") for prompt in prompts], [0] * len(prompts))
    for prompt, pair in zip(prompts, pairs, strict=True):
        assert pair.prompt == prompt_ids(reader, prompt)
        assert pair.answer == [*reader.encode("yes"), encoder.special.eot]


def test_buckets_are_chosen_among_those_that_fit() -> None:
    assert fits(64, 32, 96)
    assert not fits(65, 1, 96)  # a canvas below MIN_CANVAS
    assert not fits(40, 1, 320)  # and one above MAX_CANVAS
    assert not fits(10, 87, 96)
    rng = Random(0)
    pair = Pair([1] * 40, [1] * 50, 0)
    counts = Counter(choose_bucket(pair, (96, 128, 192, 448), 2.0, rng) for _ in range(4000))
    assert counts.keys() == {96, 128, 192}
    assert counts[96] / counts[192] == pytest.approx(4.0, rel=0.2)
    assert choose_bucket(Pair([1] * 500, [1], 0), (96, 128), 1.0, rng) is None


def test_batches_are_shared_out_without_bias() -> None:
    worth = [0.2, 3.5, 0.05, 4.45]
    points = [(index + 0.5) / 1000 for index in range(1000)]
    counts = np.array([share_out(worth, 8, point) for point in points])
    assert (counts.sum(1) == 8).all()
    expected = np.array(worth) * 8 / sum(worth)
    assert np.abs(counts.mean(0) - expected).max() < 0.01
    assert np.abs(counts - expected).max() < 1.001


# ---------------------------------------------------------------- feed


def equal(first: Batch, second: Batch) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_workers_give_the_batches_of_one_process(tokenizer: Path) -> None:
    config = data(tokenizer)
    with Feed(config, workers=0) as feed:
        alone = [next(feed) for _ in range(14)]
    with Feed(config, workers=2, start=5) as feed:
        parallel = [next(feed) for _ in range(9)]
    assert all(map(equal, alone[5:], parallel))
    assert not equal(alone[0], alone[4])


def test_dead_worker_is_an_error(tokenizer: Path) -> None:
    with Feed(data(tokenizer), workers=1) as feed:
        next(feed)
        os.kill(feed._processes[0].pid or 0, signal.SIGKILL)
        with pytest.raises(DataError, match="died"):
            list(islice(feed, 100))


def test_failing_worker_says_why(tokenizer: Path, tmp_path: Path) -> None:
    with (
        Feed(replace(data(tokenizer), tokenizer=tmp_path), workers=1) as feed,
        pytest.raises(DataError, match=r"tokenizer\.json is missing"),
    ):
        next(feed)


def test_plain_text_rows_are_maskable_whole(tokenizer: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The tower was built by hand.\n" * 200)
    config = with_corpus(data(tokenizer, text=text, text_share=0.5), tmp_path)
    source = Source(config)
    batches = source.make_group(0)
    plain = [batch.task == source.tasks.index("text") for batch in batches]
    assert 0.2 < np.concatenate(plain).mean() < 0.8
    for batch, kind in zip(batches, plain, strict=True):
        assert not batch.start[kind].any()
        assert not (batch.tokens[kind] == source.encoder.special.eos).any()


# ---------------------------------------------------------------- schedule, optimizer


def test_rate_warms_stays_and_decays_to_zero() -> None:
    clock = StepClock(100)
    rates = [rate(s, clock.progress(s), warmup=10, decay_fraction=0.4) for s in range(101)]
    assert rates[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert rates[10:60] == pytest.approx([1.0] * 50)
    assert rates[60:] == pytest.approx([(100 - s) / 40 for s in range(60, 101)])
    assert rate(50, 1.0, warmup=0, decay_fraction=0.0) == 1.0


def test_wall_clock_ends_in_time_and_starts_when_told() -> None:
    clock = WallClock(0.004)
    time.sleep(0.1)
    clock.start()
    assert clock.progress(0) < 0.5
    assert not clock.over(0)
    time.sleep(0.2)
    assert clock.progress(0) == 1.0
    assert clock.over(0)


def test_muon_takes_the_hidden_matrices_and_nothing_else(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, optimizer="muon")
    model = build_model(config, torch.device("cpu"))
    adam, muon = build(model, config)
    names = {id(part): name for name, part in model.named_parameters()}
    taken = [names[id(part)] for group in muon.param_groups for part in group["params"]]
    left = [names[id(part)] for group in adam.param_groups for part in group["params"]]
    assert len(taken) == 4 * config.layers
    assert all(name.endswith(HIDDEN) for name in taken)
    assert sorted(taken + left) == sorted(names.values())


def test_ripple_has_its_size(tokenizer: Path) -> None:
    encoder = Encoder(tokenizer)
    encoder.vocab_size = 2048
    model = architecture(encoder, width=384, layers=10, heads=6, mlp_width=1024, max_length=1024)
    size = sum(part.numel() for part in model.parameters())
    assert size == 19_275_648
    assert 2 * size < 40e6


# The compiler looks at a gradient that a block's input has not, being no leaf.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_one_compiled_block_serves_all_layers(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, layers=4)
    made: list[object] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        made.append(graph)
        return graph

    plain = Learner(build_model(config, torch.device("cpu")), config)
    learner = Learner(build_model(config, torch.device("cpu")), config)
    assert learner.compile([(8, 96), (6, 128)], backend=backend)
    assert len(made) == 4, "a block and a head for each of two shapes"
    tokens = torch.arange(8 * 96).view(8, 96) % 300 + 10
    start = torch.zeros(8, dtype=torch.long)
    rows = Rows(tokens, start, start)
    torch.testing.assert_close(learner(rows, 3).loss, plain(rows, 3).loss)
    assert len(made) == 4
    torch._dynamo.reset()


# ---------------------------------------------------------------- training


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_loss_falls(tokenizer: Path, tmp_path: Path, optimizer: str) -> None:
    last = run(toy(tokenizer, tmp_path, steps=40, optimizer=optimizer))
    records = logged(tmp_path)
    assert last["loss"] < 0.6 * records[0]["loss"]
    assert [record["step"] for record in records[:-1]] == list(range(2, 41, 2))
    assert {"lr", "grad_norm", "tokens_per_second", "elapsed", "tasks"} <= records[0].keys()


def test_one_seed_one_result(tokenizer: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        config = toy(tokenizer, tmp_path / name)
        run(replace(config, steps=6, data=replace(config.data, seed=seed)))
    one, two, three = (weights(tmp_path / name / "state.pt") for name in ("one", "two", "three"))
    assert same(one, two)
    assert not same(one, three)


KILLED = """
import os, signal, sys
from pathlib import Path
import wavefront.train.loop as loop
from train.test_train import toy
from wavefront.train import run

at = int(sys.argv[3])
learn = loop.Run._learn

def learn_until(self, *given):
    if self.step == at:
        os.kill(os.getpid(), signal.SIGKILL)
    learn(self, *given)

loop.Run._learn = learn_until
if __name__ == "__main__":
    run(toy(Path(sys.argv[1]), Path(sys.argv[2]), workers=1))
"""


@pytest.mark.slow
def test_killed_and_resumed_equals_unbroken(tokenizer: Path, tmp_path: Path) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    run(toy(tokenizer, unbroken))
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(tokenizer), str(broken), "7"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    threads = str(torch.get_num_threads())
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": threads}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert torch.load(broken / "state.pt", weights_only=True)["step"] == 4
    run(toy(tokenizer, broken, resume=True))
    assert same(weights(unbroken / "state.pt"), weights(broken / "state.pt"))
    files = [folder / "model" / "model.safetensors" for folder in (unbroken, broken)]
    assert files[0].read_bytes() == files[1].read_bytes()
    losses = [[record["loss"] for record in logged(folder)] for folder in (unbroken, broken)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_phases_by_the_clock(tokenizer: Path, tmp_path: Path) -> None:
    first = toy(
        tokenizer, tmp_path, steps=None, minutes=0.015, warmup=0, decay_fraction=0.0, resume=True
    )
    done = run(first)
    assert done["step"] > 0
    assert done["lr"] == pytest.approx(first.lr)
    more = run(replace(first, minutes=0.03, decay_fraction=0.9, save_every=10_000))
    assert more["step"] > done["step"]
    assert more["lr"] < 0.5 * first.lr


def test_start_from_weights(tokenizer: Path, tmp_path: Path) -> None:
    run(toy(tokenizer, tmp_path / "one", steps=4))
    exported = tmp_path / "one" / "model"
    config = toy(tokenizer, tmp_path / "two", init=exported, steps=2)
    model = build_model(config, torch.device("cpu"))
    stored = load_model(exported, dtype="float32", device="cpu")
    assert isinstance(stored, torch.nn.Module)
    assert same(model.state_dict(), stored.state_dict())
    assert run(config)["step"] == 2
    assert torch.load(tmp_path / "two" / "state.pt", weights_only=True)["step"] == 2


def test_export_loads_anywhere(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, steps=3, export="raw")
    run(config)
    model = load_model(tmp_path / "model", device="cpu")
    reader = Tokenizer.load(tmp_path / "model")
    special = Encoder(tokenizer).special
    assert model.family == "llada"
    assert (model.mask_id, model.pad_id) == (special.mask, special.eos)
    assert reader.stop_ids == (special.eos, special.eot)
    export_run(tmp_path, tokenizer, tmp_path / "again", weights="raw")
    files = [tmp_path / name / "model.safetensors" for name in ("model", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()
    asked = ["loss", "--model", str(tmp_path / "model"), "--mixture", "navigate", "--device", "cpu"]
    assert main([*asked, "--tokens-per-step", "2048", "--buckets", "192"]) == 0


# ---------------------------------------------------------------- tokenizer


def test_tokenizer_is_deterministic_and_reversible(tokenizer: Path, tmp_path: Path) -> None:
    write_tokenizer(train_tokenizer(training_texts(samples=400, mixture=TASKS), 400), tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (tokenizer / name).read_bytes()
    reader = Tokenizer.load(tokenizer)
    assert reader.vocab_size == 400
    for text in ("a  b\n\n\tc ", "x = 1234.5\n    y", "naïve — 東京 🙂", "<|mdm_mask|>", "\r\n"):
        assert reader.decode(reader.encode(text)) == text
    for piece in reader.pieces(reader.encode("in 2024: 1,000,000 of 35")):
        assert sum(char.isdigit() for char in piece) <= 1


# ---------------------------------------------------------------- what nobody should ask for


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minutes": 1.0}, "either steps or minutes"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"lr": -1.0}, "lr must be"),
        ({"width": 30}, "multiple of twice the heads"),
        ({"init": Path("x"), "resume": True}, "give one of them"),
        ({"ema": 0.0, "export": "ema"}, "needs an ema"),
        ({"decay_fraction": 1.5}, "decay_fraction must be between 0 and 1"),
        ({"workers": -1}, "workers must be"),
    ],
)
def test_bad_training_options(
    tokenizer: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        toy(tokenizer, tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": (128, 96)}, "ascending"),
        ({"buckets": (16, 96)}, "a bucket must be"),
        ({"tokens_per_step": 10}, "tokens_per_step"),
        ({"text_share": 0.5}, "go together"),
        ({"mixture": {"navigate": 0.0}}, "above 0"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_data_options(tokenizer: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        data(tokenizer, **changes)


def test_unusable_data_is_refused(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no task 'navigat'"):
        Source(data(tokenizer, mixture={"navigat": 1.0}))
    long = {"tracking_shuffled_objects_seven_objects": 1.0}
    with pytest.raises(OptionError, match="No example fits"):
        Source(data(tokenizer, mixture=long, buckets=(96,))).make_group(0)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        Encoder(tmp_path)


def test_states_are_guarded(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, steps=2)
    run(config)
    with pytest.raises(OptionError, match="resume from it, or choose another directory"):
        run(config)
    with pytest.raises(OptionError, match="made with layers=2"):
        run(replace(config, resume=True, layers=3))
    with pytest.raises(OptionError, match="made with seed=0"):
        run(replace(config, resume=True, data=replace(config.data, seed=1)))
    (tmp_path / "state.pt").write_bytes(b"no state")
    with pytest.raises(CheckpointError, match="cannot be read"):
        run(replace(config, resume=True))


def test_command_line(tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mixture("gsm=2,code") == {"gsm": 2.0, "code": 1.0}
    asked = ["run", "--out", str(tmp_path), "--tokenizer", str(tokenizer), "--steps", "0"]
    assert main(asked) == 2
    assert capsys.readouterr().err == "error: steps must be at least 1, not 0.\n"
    out = tmp_path / "made"
    made = ["tokenizer", "--out", str(out), "--size", "300", "--samples", "50"]
    assert main([*made, "--mixture", "boolean_expressions"]) == 0
    speed = ["speed", "--tokenizer", str(out), "--mixture", "boolean_expressions", "--group", "2"]
    assert main([*speed, "--tokens-per-step", "4096"]) == 0
    assert "rows/s" in capsys.readouterr().out
