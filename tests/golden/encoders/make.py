"""Make the two tiny encoders here, and what the bert-score package says of fixed texts with them.

In an environment of its own, because the package does not run on current transformers:

    pip install torch==2.13.0 transformers==4.57.6 bert-score==0.3.13
    python tests/golden/encoders/make.py

The encoders are random: agreement is about the method, and needs no weights of anybody.
"""

from __future__ import annotations

import json
from pathlib import Path

import bert_score  # pyright: ignore[reportMissingImports]
import torch
from tokenizers import pre_tokenizers
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

HERE = Path(__file__).parent
PAIRS = [
    ("the cat sat on the mat", "a cat was sitting on the rug"),
    ("the cat sat on the mat", "the cat sat on the mat"),
    ("She sells 16 - 3 - 4 = 9 eggs.", "She has 9 eggs to sell, since 16 - 3 - 4 = 9."),
    ("one", "a much longer reference, of many more words than the candidate has"),
    ("a much longer candidate, of many more words than the reference has", "one"),
    ("   blanks  around   ", "blanks around"),
    ("Ünïcode tëxt", "unicode text"),
    ("", "a reference without a candidate"),
    ("a candidate without a reference", ""),
    ("word " * 200, "words beyond what the encoder has room for " * 12),
]
SEVERAL = [["the rug", "the cat sat on the mat"], ["a dog", "no cat", "the mat sat"]]


def fill(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, part in sorted(model.named_parameters()):
        drawn = torch.randn(part.shape, generator=generator)
        # Norms near one, all else wide: otherwise all states are nearly the same.
        part.data = 1 + 0.1 * drawn if name.endswith("LayerNorm.weight") else 0.5 * drawn


def make_bert(folder: Path) -> None:
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    words = ["the", "cat", "sat", "on", "mat", "words", "one", "candidate", "reference"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *letters]
    vocabulary += [f"##{letter}" for letter in letters]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    fill(model)
    model.save_pretrained(folder)


def make_roberta(folder: Path) -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("c", "a"), ("ca", "t"), ("Ġ", "cat")]
    names += ["".join(pair) for pair in merges] + ["<mask>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges), ""]
    (folder / "merges.txt").write_text("\n".join(lines))
    settings = {"tokenizer_class": "RobertaTokenizer", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = RobertaConfig(
        vocab_size=len(names), hidden_size=16, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=66, type_vocab_size=1,
    )  # fmt: skip
    model = RobertaModel(config, add_pooling_layer=False)
    fill(model)
    model.save_pretrained(folder)


def measure(folder: Path) -> dict[str, list[list[float]]]:
    candidates, references = (list(side) for side in zip(*PAIRS, strict=True))
    baseline = {"rescale_with_baseline": True, "baseline_path": str(HERE / "baseline.csv")}
    asked = {
        "plain": (candidates, references, {"num_layers": 2}),
        "last layer": (candidates, references, {"num_layers": 3}),
        "idf": (candidates, references, {"num_layers": 2, "idf": True, "nthreads": 0}),
        "several": (["the cat sat on the mat"] * 2, SEVERAL, {"num_layers": 2}),
        "rescaled": (candidates, references, {"num_layers": 2, "lang": "en", **baseline}),
    }
    found = {}
    for name, (ours, theirs, more) in asked.items():
        parts = bert_score.score(ours, theirs, model_type=str(folder), device="cpu", **more)
        found[name] = torch.stack(parts, 1).tolist()
    return found


if __name__ == "__main__":
    (HERE / "baseline.csv").write_text(
        "LAYER,P,R,F\n0,0.0,0.0,0.0\n1,0.1,0.2,0.3\n2,0.4,0.5,0.6\n3,0.7,0.7,0.7\n"
    )
    make_bert(HERE / "bert-tiny")
    make_roberta(HERE / "roberta-tiny")
    values = {name: measure(HERE / name) for name in ("bert-tiny", "roberta-tiny")}
    given = {"pairs": PAIRS, "several": SEVERAL, "scores": values}
    (HERE / "bertscore.json").write_text(json.dumps(given, indent=1) + "\n")
