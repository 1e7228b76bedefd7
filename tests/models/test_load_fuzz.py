"""Every key of every config.json, and every option of a load, with every odd value."""

from __future__ import annotations

import inspect
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.option_cases import LITERALS, OBJECTS, is_accepted, json_values

import wavefront
from wavefront.core.errors import quote

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINTS = sorted(
    file.parent.relative_to(GOLDEN)
    for file in GOLDEN.glob("**/config.json")
    if "encoders" not in file.parts
)
MASK_IDS = {"illada/checkpoint": 5, "a2d/checkpoint": 5}  # of models that do not name theirs
LOAD_OPTIONS = ("mask_id", "attention", "block_size", "dtype", "quantize", "speed", "device")
LONGEST_MESSAGE = 1000
NESTED = ({"rope_type": "default"}, [10**30], {"a": {"b": [None]}}, [[[]]])
pytestmark = pytest.mark.filterwarnings("ignore::wavefront.core.errors.WavefrontWarning")


def config_cases() -> Iterator[tuple[Path, str, Any]]:
    for checkpoint in CHECKPOINTS:
        for key in json.loads((GOLDEN / checkpoint / "config.json").read_text()):
            for value in json_values(*NESTED):
                yield checkpoint, key, value


def check_load(path: Path, **options: Any) -> bool:
    """Load a model; return False if it is refused with one sentence."""
    return is_accepted(
        lambda: wavefront.load_model(path, **{"device": "cpu", **options}),
        f"{path.name}: {quote(options)}",
        longest=LONGEST_MESSAGE,
    )


def check_configs(cases: list[tuple[Path, str, Any]], folder: Path) -> list[bool]:
    results = []
    for checkpoint, key, value in cases:
        path = folder / str(checkpoint).replace("/", "-")
        if not path.exists():
            shutil.copytree(GOLDEN / checkpoint, path)
        config = json.loads((GOLDEN / checkpoint / "config.json").read_text()) | {key: value}
        (path / "config.json").write_text(json.dumps(config))
        given = {"mask_id": MASK_IDS[str(checkpoint)]} if str(checkpoint) in MASK_IDS else {}
        try:
            results.append(check_load(path, **given))
        except AssertionError as error:
            raise AssertionError(f"{checkpoint}: {key} = {quote(value)}: {error}") from error
    return results


def load_cases() -> list[dict[str, Any]]:
    known = inspect.signature(wavefront.load_model).parameters
    names = [name for name in LOAD_OPTIONS if name in known]
    assert {"mask_id", "attention", "block_size", "quantize"} <= set(names)
    return [{name: value} for name in names for value in (*LITERALS, *OBJECTS)]


def sample(cases: list[Any], count: int) -> list[Any]:
    return random.Random(0).sample(cases, min(count, len(cases)))


def test_sample_of_configs(tmp_path: Path) -> None:
    check_configs(sample(list(config_cases()), 40), tmp_path)


def test_sample_of_load_options() -> None:
    for options in sample(load_cases(), 60):
        check_load(GOLDEN / "sdar" / "checkpoint", **options)


@pytest.mark.slow
def test_many_configs(tmp_path: Path) -> None:
    results = check_configs(sample(list(config_cases()), 2000), tmp_path)
    assert any(results)
    assert not all(results)


@pytest.mark.slow
def test_all_load_options() -> None:
    for folder in ("sdar/checkpoint", "llada2/llada2-tiny", "llada-tiny"):
        for options in load_cases():
            check_load(GOLDEN / folder, **options)
