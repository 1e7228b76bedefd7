"""Read training texts from files, and the texts to keep out of training.

A `.jsonl` file holds one object per line: a prompt and its answer, a text, or a prompt alone, which
the original answers. Any other file is plain text, with a blank line between two texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wavefront.core.errors import OptionError
from wavefront.storage.read_file import check_unicode
from wavefront.train.corpus import read_training_text
from wavefront.train.original import Original

Encode = Callable[[str], list[int]]


class Example(NamedTuple):
    """One text as ids."""

    prompt: list[int]  # as the model sees it, with its chat template; empty for plain text
    answer: list[int]  # with the end token if the text has its end; empty if it is to be written
    content: list[int]  # the words of prompt and answer alone, for the overlap check


def read_examples(path: Path, original: Original, folder: Path, *, longest: int) -> list[Example]:
    """Read the texts of a file.

    Args:
        path: The file.
        original: The original, for its tokens.
        folder: The directory of the saved original, for its tokenizer and chat template.
        longest: The maximum tokens of a row; a longer plain text becomes several rows.

    Raises:
        OptionError: The file is missing, empty or not in one of the formats.
    """
    from wavefront.text.tokenizer import Tokenizer, many_prompt_ids

    reader = Tokenizer.load(folder)
    begin = [] if original.bos_id is None else [original.bos_id]
    end = [original.end_id]
    examples: list[Example] = []
    pairs = read_pairs(path)
    prompts = many_prompt_ids(reader, [prompt for prompt, _ in pairs if prompt])
    for prompt, answer in pairs:
        words = reader.encode(answer)
        if prompt:
            ids = next(prompts)
            full = [*words, *end] if answer else []
            examples.append(Example(ids, full, reader.encode(prompt) + words))
            continue
        row = [*begin, *words, *end]
        pieces = [row[first : first + longest] for first in range(0, len(row), longest)]
        # A piece without words, such as the end alone, teaches nothing.
        examples += [Example([], piece, piece) for piece in pieces if len(piece) > 2]
    return examples


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return (prompt, answer) for every text; the prompt of a plain text is empty."""
    text = read_training_text(path, option="data")
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        pairs = list(_json_pairs(path, text))
    else:
        texts = (part.strip() for part in text.replace("\r\n", "\n").split("\n\n"))
        pairs = [("", part) for part in texts if part]
    if not pairs:
        raise OptionError(f"data {str(path)!r} holds no text.", option="data", value=str(path))
    kinds = {bool(answer) for _, answer in pairs}
    if len(kinds) > 1:
        raise OptionError(
            f"data {str(path)!r} has answers in some lines only; give all of them or none.",
            option="data",
        )
    return pairs


def _json_pairs(path: Path, text: str) -> Iterator[tuple[str, str]]:
    # Not `splitlines`: a JSON text may contain U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            item: Any = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        values: dict[str, Any] = item if isinstance(item, dict) else {}
        prompt: Any = values.get("prompt", "")
        answer: Any = values.get("text" if "text" in values else "answer", "")
        strings = isinstance(prompt, str) and isinstance(answer, str)
        if not strings or not (prompt.strip() or ("text" in values and answer.strip())):
            raise OptionError(
                f"Line {number} of data {str(path)!r} has neither a text nor a prompt; write "
                'objects such as {"prompt": "…", "answer": "…"}.',
                option="data",
            )
        check_unicode([prompt, answer], f"Line {number} of data {str(path)!r}", error=OptionError)
        yield prompt, answer


def unseen_texts(names: Sequence[str], encode: Encode) -> dict[str, list[list[int]]]:
    """Return the ids of texts to keep out of training, by name: files, or benchmarks.

    The name bbh stands for all its subsets.

    Raises:
        OptionError: A name is neither a file nor a benchmark, or its data is missing.
    """
    found: dict[str, list[list[int]]] = {}
    for name in names:
        if Path(name).is_file():
            texts = [part for pair in read_pairs(Path(name)) for part in pair if part]
            found[name] = [encode(text) for text in texts]
            continue
        from wavefront.tasks import load
        from wavefront.tasks.base import Ask
        from wavefront.tasks.benchmarks.bbh import SUBSETS

        for task in [f"bbh_{subset}" for subset in SUBSETS] if name == "bbh" else [name]:
            items = load(task).items(Ask(style="bare"))
            found[task] = [encode(item.prompt) for item in items]
    return found
