"""Training: row layout, data workers, learning rate, resuming, tokenizer, export."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.processes import kill_and_count_survivors

from wavefront.core.errors import CheckpointError, OptionError
from wavefront.models.loader import load_model
from wavefront.models.transformer import Transformer
from wavefront.text.tokenizer import Tokenizer, prompt_ids
from wavefront.train import TrainConfig, run
from wavefront.train.command import main, mixture
from wavefront.train.config import DataConfig
from wavefront.train.corpus import with_corpus
from wavefront.train.data import BatchSource, TrainingBatch, allocate_batches
from wavefront.train.export import build_architecture, build_model, export_run
from wavefront.train.lr_schedule import StepClock, WallClock, lr_factor
from wavefront.train.optimizer import MUON_MATRICES, build_optimizers
from wavefront.train.prefetch import DataError, Prefetcher
from wavefront.train.row_layout import (
    MAX_CANVAS,
    MIN_CANVAS,
    Pair,
    RowEncoder,
    choose_bucket,
    fits_bucket,
)
from wavefront.train.tokenizer import train_tokenizer, training_texts, write_tokenizer
from wavefront.train.train_step import DeviceBatch, TrainStep

TASKS = {"boolean_expressions": 1.0, "navigate": 1.0, "tracking_shuffled_objects_five_objects": 0.3}


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


def same_weights(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


# ---------------------------------------------------------------- layout


def test_rows_are_prompt_answer_eot_eos(tokenizer: Path) -> None:
    source = BatchSource(data(tokenizer, tokens_per_step=4096))
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
    encoder, reader = RowEncoder(tokenizer), Tokenizer.load(tokenizer)
    prompts = ["Is it?", "  two\n\nlines <|eot_id|>  ", "def f(x):\n    return 1", "12 + 345"]
    pairs = encoder.pairs([(prompt, "yes") for prompt in prompts], [0] * len(prompts))
    for prompt, pair in zip(prompts, pairs, strict=True):
        assert pair.prompt == prompt_ids(reader, prompt)
        assert pair.answer == [*reader.encode("yes"), encoder.special.eot]


def test_chosen_bucket_fits_the_pair() -> None:
    assert fits_bucket(64, 32, 96)
    assert not fits_bucket(65, 1, 96)  # a canvas below MIN_CANVAS
    assert not fits_bucket(40, 1, 320)  # and one above MAX_CANVAS
    assert not fits_bucket(10, 87, 96)
    rng = Random(0)
    pair = Pair([1] * 40, [1] * 50, 0)
    counts = Counter(
        choose_bucket(pair, (96, 128, 192, 448), bias=2.0, rng=rng) for _ in range(4000)
    )
    assert counts.keys() == {96, 128, 192}
    assert counts[96] / counts[192] == pytest.approx(4.0, rel=0.2)
    assert choose_bucket(Pair([1] * 500, [1], 0), (96, 128), bias=1.0, rng=rng) is None


def test_batches_are_allocated_without_bias() -> None:
    worth = [0.2, 3.5, 0.05, 4.45]
    points = [(index + 0.5) / 1000 for index in range(1000)]
    counts = np.array([allocate_batches(worth, 8, point) for point in points])
    assert (counts.sum(1) == 8).all()
    expected = np.array(worth) * 8 / sum(worth)
    assert np.abs(counts.mean(0) - expected).max() < 0.01
    assert np.abs(counts - expected).max() < 1.001


# ---------------------------------------------------------------- prefetching


def equal_batches(first: TrainingBatch, second: TrainingBatch) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_workers_make_the_same_batches_as_one_process(tokenizer: Path) -> None:
    config = data(tokenizer)
    with Prefetcher(config, workers=0) as batches:
        alone = [next(batches) for _ in range(14)]
    with Prefetcher(config, workers=2, start=5) as batches:
        parallel = [next(batches) for _ in range(9)]
    assert all(map(equal_batches, alone[5:], parallel))
    assert not equal_batches(alone[0], alone[4])


def test_dead_worker_raises(tokenizer: Path) -> None:
    with Prefetcher(data(tokenizer), workers=1) as batches:
        next(batches)
        os.kill(batches._processes[0].pid or 0, signal.SIGKILL)
        with pytest.raises(DataError, match="died"):
            list(islice(batches, 100))


@pytest.mark.slow
def test_data_workers_end_with_a_killed_trainer(tokenizer: Path, tmp_path: Path) -> None:
    """The workers make a group that takes minutes, so they do not write to their pipes."""
    script = tmp_path / "trainer.py"
    config = replace(data(tokenizer), group=1024, tokens_per_step=100_000)
    script.write_text(
        "import pickle, sys, time\n"
        "from wavefront.train.prefetch import Prefetcher\n"
        "if __name__ == '__main__':\n"
        f"    with Prefetcher(pickle.loads({pickle.dumps(config)!r}), workers=2):\n"
        "        time.sleep(100)\n"
    )
    # The third process tracks the resources of multiprocessing.
    assert kill_and_count_survivors([str(script)], children=3, wait=8) == 0


def test_failing_worker_reports_the_reason(tokenizer: Path, tmp_path: Path) -> None:
    with (
        Prefetcher(replace(data(tokenizer), tokenizer=tmp_path), workers=1) as batches,
        pytest.raises(DataError, match=r"tokenizer\.json is missing"),
    ):
        next(batches)


def test_plain_text_rows_are_maskable_everywhere(tokenizer: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The tower was built by hand.\n" * 200)
    config = with_corpus(data(tokenizer, text=text, text_share=0.5), tmp_path)
    source = BatchSource(config)
    batches = source.make_group(0)
    plain = [batch.task == source.tasks.index("text") for batch in batches]
    assert 0.2 < np.concatenate(plain).mean() < 0.8
    for batch, kind in zip(batches, plain, strict=True):
        assert not batch.start[kind].any()
        assert not (batch.tokens[kind] == source.encoder.special.eos).any()


# ---------------------------------------------------------------- learning rate, optimizer


def test_learning_rate_warms_up_stays_and_decays() -> None:
    clock = StepClock(100)
    rates = [lr_factor(s, clock.progress(s), warmup=10, decay_fraction=0.4) for s in range(101)]
    assert rates[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert rates[10:60] == pytest.approx([1.0] * 50)
    assert rates[60:] == pytest.approx([(100 - s) / 40 for s in range(60, 101)])
    assert lr_factor(50, 1.0, warmup=0, decay_fraction=0.0) == 1.0


def test_wall_clock_starts_on_start_and_ends_on_time() -> None:
    clock = WallClock(0.004)
    time.sleep(0.1)
    clock.start()
    assert clock.progress(0) < 0.5
    assert not clock.is_over(0)
    time.sleep(0.2)
    assert clock.progress(0) == 1.0
    assert clock.is_over(0)


def test_muon_gets_only_the_hidden_matrices(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, optimizer="muon")
    model = build_model(config, torch.device("cpu"))
    adam, muon = build_optimizers(model, config)
    names = {id(part): name for name, part in model.named_parameters()}
    taken = [names[id(part)] for group in muon.param_groups for part in group["params"]]
    left = [names[id(part)] for group in adam.param_groups for part in group["params"]]
    assert len(taken) == 4 * config.layers
    assert all(name.endswith(MUON_MATRICES) for name in taken)
    assert sorted(taken + left) == sorted(names.values())


def test_ripple_has_19_million_parameters(tokenizer: Path) -> None:
    encoder = RowEncoder(tokenizer)
    encoder.vocab_size = 2048
    model = build_architecture(
        encoder, width=384, layers=10, heads=6, mlp_width=1024, max_length=1024
    )
    size = sum(part.numel() for part in model.parameters())
    assert size == 19_275_648
    assert 2 * size < 40e6


# The compiler reads the gradient of a block's input, which is not a leaf.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_all_layers_share_compiled_code(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, layers=4)
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph

    plain = TrainStep(build_model(config, torch.device("cpu")), config)
    compiled = TrainStep(build_model(config, torch.device("cpu")), config)
    assert compiled.compile([(8, 96), (6, 128)], backend=backend)
    assert len(graphs) == 4, "a block and a head for each of two shapes"
    tokens = torch.arange(8 * 96).view(8, 96) % 300 + 10
    start = torch.zeros(8, dtype=torch.long)
    rows = DeviceBatch(tokens, start, start)
    torch.testing.assert_close(compiled(rows, 3).loss, plain(rows, 3).loss)
    assert len(graphs) == 4
    torch._dynamo.reset()


# ---------------------------------------------------------------- training


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_loss_decreases(tokenizer: Path, tmp_path: Path, optimizer: str) -> None:
    last = run(toy(tokenizer, tmp_path, steps=40, optimizer=optimizer))
    records = logged(tmp_path)
    assert last["loss"] < 0.6 * records[0]["loss"]
    assert [record["step"] for record in records[:-1]] == list(range(2, 41, 2))
    assert {"lr", "grad_norm", "tokens_per_second", "elapsed", "tasks"} <= records[0].keys()


@pytest.mark.slow
def test_same_seed_gives_the_same_weights(tokenizer: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        config = toy(tokenizer, tmp_path / name)
        run(replace(config, steps=6, data=replace(config.data, seed=seed)))
    one, two, three = (weights(tmp_path / name / "state.pt") for name in ("one", "two", "three"))
    assert same_weights(one, two)
    assert not same_weights(one, three)


KILLED = """
import os, signal, sys
from pathlib import Path
import wavefront.train.loop as loop
from train.test_train import toy
from wavefront.train import run
from wavefront.models.transformer import Transformer

at = int(sys.argv[3])
learn = loop.TrainingRun._train_one_step

def learn_until(self, *given):
    if self.step == at:
        os.kill(os.getpid(), signal.SIGKILL)
    learn(self, *given)

loop.TrainingRun._train_one_step = learn_until
if __name__ == "__main__":
    run(toy(Path(sys.argv[1]), Path(sys.argv[2]), workers=1))
"""


@pytest.mark.slow
def test_killed_and_resumed_run_equals_uninterrupted_run(tokenizer: Path, tmp_path: Path) -> None:
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    run(toy(tokenizer, uninterrupted))
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), str(tokenizer), str(interrupted), "7"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    threads = str(torch.get_num_threads())
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": threads}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    assert torch.load(interrupted / "state.pt", weights_only=True)["step"] == 4
    run(toy(tokenizer, interrupted, resume=True))
    assert same_weights(weights(uninterrupted / "state.pt"), weights(interrupted / "state.pt"))
    files = [folder / "model" / "model.safetensors" for folder in (uninterrupted, interrupted)]
    assert files[0].read_bytes() == files[1].read_bytes()
    losses = [
        [record["loss"] for record in logged(folder)] for folder in (uninterrupted, interrupted)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_timed_run_can_be_continued_with_decay(tokenizer: Path, tmp_path: Path) -> None:
    first = toy(
        tokenizer, tmp_path, steps=None, minutes=0.015, warmup=0, decay_fraction=0.0, resume=True
    )
    done = run(first)
    assert done["step"] > 0
    assert done["lr"] == pytest.approx(first.lr)
    more = run(replace(first, minutes=0.03, decay_fraction=0.9, save_every=10_000))
    assert more["step"] > done["step"]
    assert more["lr"] < 0.5 * first.lr


@pytest.mark.slow
def test_run_starts_from_given_weights(tokenizer: Path, tmp_path: Path) -> None:
    run(toy(tokenizer, tmp_path / "one", steps=4))
    exported = tmp_path / "one" / "model"
    config = toy(tokenizer, tmp_path / "two", init=exported, steps=2)
    model = build_model(config, torch.device("cpu"))
    stored = load_model(exported, dtype="float32", device="cpu")
    assert isinstance(stored, torch.nn.Module)
    assert same_weights(model.state_dict(), stored.state_dict())
    assert run(config)["step"] == 2
    assert torch.load(tmp_path / "two" / "state.pt", weights_only=True)["step"] == 2


def test_exported_model_loads(tokenizer: Path, tmp_path: Path) -> None:
    config = toy(tokenizer, tmp_path, steps=3, export="raw")
    run(config)
    model = load_model(tmp_path / "model", device="cpu")
    reader = Tokenizer.load(tmp_path / "model")
    special = RowEncoder(tokenizer).special
    assert model.family == "llada"
    assert (model.mask_id, model.pad_id) == (special.mask, special.eos)
    assert reader.stop_ids == (special.eos, special.eot)
    export_run(tmp_path, tokenizer, tmp_path / "again", weights="raw")
    files = [tmp_path / name / "model.safetensors" for name in ("model", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()
    export_run(tmp_path, tokenizer, tmp_path / "int8", weights="raw", storage="int8")
    stored = load_model(tmp_path / "int8", device="cpu")
    assert isinstance(stored, Transformer)
    assert isinstance(model, Transformer)
    assert torch.allclose(stored.embedding.weight, model.embedding.weight, atol=1e-3)
    assert (tmp_path / "int8" / "model.safetensors").stat().st_size < 0.7 * files[0].stat().st_size
    arguments = [
        "loss",
        "--model",
        str(tmp_path / "model"),
        "--mixture",
        "navigate",
        "--device",
        "cpu",
    ]
    assert main([*arguments, "--tokens-per-step", "2048", "--buckets", "192"]) == 0


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


# ---------------------------------------------------------------- invalid input


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
def test_invalid_training_options_raise(
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
def test_invalid_data_options_raise(tokenizer: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        data(tokenizer, **changes)


@pytest.mark.slow
def test_unusable_data_raises(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no task 'navigat'"):
        BatchSource(data(tokenizer, mixture={"navigat": 1.0}))
    long = {"tracking_shuffled_objects_seven_objects": 1.0}
    with pytest.raises(OptionError, match="No example fits"):
        BatchSource(data(tokenizer, mixture=long, buckets=(96,))).make_group(0)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        RowEncoder(tmp_path)


def test_mismatched_or_damaged_state_raises(tokenizer: Path, tmp_path: Path) -> None:
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


def test_commands_run_and_report_errors(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mixture("gsm=2,code") == {"gsm": 2.0, "code": 1.0}
    arguments = ["run", "--out", str(tmp_path), "--tokenizer", str(tokenizer), "--steps", "0"]
    assert main(arguments) == 2
    assert capsys.readouterr().err == "error: steps must be at least 1, not 0.\n"
    out = tmp_path / "made"
    arguments = ["tokenizer", "--out", str(out), "--size", "300", "--samples", "50"]
    assert main([*arguments, "--mixture", "boolean_expressions"]) == 0
    speed = ["speed", "--tokenizer", str(out), "--mixture", "boolean_expressions", "--group", "2"]
    assert main([*speed, "--tokens-per-step", "4096"]) == 0
    assert "rows/s" in capsys.readouterr().out


def test_held_out_loss_of_the_average_is_not_that_of_the_weights(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mixed precision keeps copies of the weights; those of the raw weights must not be used."""
    monkeypatch.setattr(TrainStep, "precision", lambda _: torch.autocast("cpu", torch.bfloat16))
    run(toy(tokenizer, tmp_path, eval_every=12))
    measured = [line["held_out"] for line in logged(tmp_path) if "held_out" in line]
    before, at_the_end = measured
    assert at_the_end["ema"]["loss"] == before["ema"]["loss"]
    assert at_the_end["raw"]["loss"] != before["ema"]["loss"]
