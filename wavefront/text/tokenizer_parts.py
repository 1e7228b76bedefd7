"""Find out from a tokenizer's JSON whether its work grows only linearly with its input.

Everything that is not known to be linear counts as not linear, such as an unknown regular
expression. The published tokenizers consist of the parts below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

GROWTH_LIMIT = 32.0  # bytes of output for each byte of input, over all normalizers or decoders
TOKEN_LIMIT = 4096  # bytes of one token
# Unigram looks at every position for every token that could start there. Its trainer makes tokens
# of at most 16 characters, so of at most 64 bytes.
UNIGRAM_LIMIT = 64
WORD_LIMIT = 256  # characters of a word; WordPiece takes quadratic time in it. BERT has 100
PART_LIMIT = 64  # normalizers, pre-tokenizers, decoders and processors; each reads the whole text

_NUMBERS = (r"\p{N}", r"\p{N}{1,3}")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The regular expressions of GPT-2, of Qwen2 and Llama 3, and of the models of this package.
REGEXES = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(_WORDS % numbers for numbers in _NUMBERS),
    r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\n+|[^\S\n]+(?!\S)|[^\S\n]+",
}
NORMALIZERS = {
    *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "BertNormalizer"),
    *("ByteLevel", "Nmt"),
}
PRE_TOKENIZERS = {
    *("ByteLevel", "Whitespace", "WhitespaceSplit", "Digits", "Metaspace", "Punctuation"),
    *("BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"),
}
DECODERS = {
    *("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "WordPiece", "BPEDecoder", "Strip"),
}
POST_PROCESSORS = {"ByteLevel", "BertProcessing", "RobertaProcessing"}
MODELS = {"BPE", "WordPiece", "WordLevel", "Unigram"}
# Where a part of the kind Sequence lists its parts.
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_PLACES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")

Json = Mapping[str, Any]


def linear_calls(tokenizer: Json) -> dict[str, bool]:
    """Return whether encoding and decoding take linear time, from the tokenizer's JSON."""
    model = tokenizer["model"]
    bounded = model["type"] in MODELS and _longest_token(tokenizer) <= TOKEN_LIMIT
    bounded = bounded and _searches_little(model)
    bounded = bounded and sum(_count(tokenizer.get(name)) for name in _PLACES) <= PART_LIMIT
    affixes = [model.get(affix) or "" for affix in _AFFIXES]
    bounded = bounded and max(map(len, affixes)) <= 16
    return {
        "encode": bounded
        and _growth(tokenizer.get("normalizer"), NORMALIZERS) <= GROWTH_LIMIT
        and _growth(tokenizer.get("pre_tokenizer"), PRE_TOKENIZERS) <= GROWTH_LIMIT
        and _growth(tokenizer.get("post_processor"), POST_PROCESSORS) <= GROWTH_LIMIT,
        "decode": bounded and _growth(tokenizer.get("decoder"), DECODERS) <= GROWTH_LIMIT,
    }


def _searches_little(model: Json) -> bool:
    """Return whether a model compares each character with few tokens."""
    if model["type"] == "WordPiece":
        return int(model.get("max_input_chars_per_word", WORD_LIMIT + 1)) <= WORD_LIMIT
    if model["type"] == "Unigram":
        return _most_bytes(_vocabulary(model)) <= UNIGRAM_LIMIT
    return True


def _count(part: Json | None) -> int:
    """Return how many parts a part consists of, itself included."""
    lists = () if part is None else [part[name] for name in _LISTS if name in part]
    return (part is not None) + sum(_count(inner) for parts in lists for inner in parts)


def _growth(part: Json | None, known: set[str]) -> float:
    """Return how many times longer a part can make a text; infinity if that is not known."""
    if part is None:
        return 1.0
    kind = part["type"]
    if kind == "Sequence":
        growth = 1.0
        for inner in next(part[name] for name in _LISTS if name in part):
            growth *= _growth(inner, known)
        return growth
    if kind == "Replace":
        return _replacement_growth(part)
    if kind == "Prepend":
        return 1.0 + len(part["prepend"].encode())
    if kind == "Split":
        pattern = part["pattern"]
        return 1.0 if "String" in pattern or pattern.get("Regex") in REGEXES else float("inf")
    if kind == "TemplateProcessing":
        return float(sum("Sequence" in piece for piece in part["single"]))
    return 1.0 if kind in known else float("inf")


def _replacement_growth(part: Json) -> float:
    pattern = part["pattern"].get("String")
    if not pattern:  # a regular expression, or one that matches everywhere
        return float("inf")
    return max(1.0, len(part["content"].encode()) / len(pattern.encode()))


def _longest_token(tokenizer: Json) -> int:
    """Return the bytes of the longest token."""
    added = [token["content"] for token in tokenizer.get("added_tokens") or ()]
    return _most_bytes([*_vocabulary(tokenizer["model"]), *added])


def _vocabulary(model: Json) -> list[str]:
    # Unigram lists pairs of a token and its score.
    vocabulary = model.get("vocab") or ()
    return [token if isinstance(token, str) else token[0] for token in vocabulary]


def _most_bytes(tokens: Iterable[str]) -> int:
    return max((len(token.encode("utf-8", "replace")) for token in tokens), default=0)
