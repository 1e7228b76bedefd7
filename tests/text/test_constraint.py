"""Constraints compiled for vocabularies: the automaton reads texts as the tokenizer spells them."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
import torch
from helpers.option_cases import time_limit
from helpers.random_constraints import PATTERNS, QUICK, SCHEMAS
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

import wavefront
from wavefront.core.constraint import ANY, Constraint, members
from wavefront.core.errors import MissingExtraError, OptionError, quote
from wavefront.text import constraint as module
from wavefront.text.byte_automaton import Automaton, minimize
from wavefront.text.byte_tokenizer import byte_tokenizer
from wavefront.text.constraint import check_constraint, compile_constraint, pinned_tokens
from wavefront.text.json_schema import to_regex
from wavefront.text.tokenizer import Tokenizer

HOME = Path(wavefront.__file__).parent / "models" / "builtin"


@pytest.fixture(scope="module")
def ripple() -> Tokenizer:
    return Tokenizer.load(HOME / "ripple")


@pytest.fixture(scope="module")
def tale() -> Tokenizer:
    return Tokenizer.load(HOME / "tale")


def stripping_tokenizer() -> Tokenizer:
    """Return a sentencepiece tokenizer that drops the first space of a text, as Llama 2's does."""
    pieces = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁yes", "yes", "▁no", "n", "o", "▁n", "es", "y"]
    backend = Backend(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)}, merges=[], byte_fallback=True
        )
    )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    return Tokenizer(backend, settings={"eos_token": "</s>"}, config={})


def nested_lists(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def nested_schema(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


def compiled(tokenizer: Tokenizer, **options: Any):
    constraint = check_constraint(**options)
    assert constraint is not None
    return compile_constraint(tokenizer, constraint, vocab_size=tokenizer.vocab_size)


def reads(automaton: Any, ids: list[int]) -> bool:
    return automaton.accepts([int(automaton.token_class[id]) for id in ids])


def walk(automaton: Any, tokenizer: Tokenizer, seed: int, *, longest: int = 60) -> str | None:
    """Return the text of a random answer, or None if it gets too long."""
    source = torch.Generator().manual_seed(seed)
    distance, reached = dict.fromkeys(automaton.accepting, 0), list(automaton.accepting)
    for state in reached:
        for other in members(automaton.backward(1 << state, ANY)):
            if other not in distance:
                distance[other] = distance[state] + 1
                reached.append(other)
    state, ids = automaton.start, []
    while not (state in automaton.accepting and torch.rand(1, generator=source) < 0.3):
        edges = automaton.edges[automaton.edges[:, 0] == state].tolist()
        edges = [edge for edge in edges if edge[2] in distance]
        if not edges:
            break
        if len(ids) > longest // 2:  # go straight to an end
            edges = [min(edges, key=lambda edge: distance[edge[2]])]
        _, symbol, state = edges[int(torch.randint(len(edges), (1,), generator=source))]
        tokens = (automaton.token_class == symbol).nonzero()[:, 0]
        ids.append(int(tokens[int(torch.randint(len(tokens), (1,), generator=source))]))
        if len(ids) > 4 * longest:
            return None
    return tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["ripple", "tale", "bytes"])
def test_texts_are_read_as_the_tokenizer_spells_them(name, request):
    tokenizer = byte_tokenizer() if name == "bytes" else request.getfixturevalue(name)
    lead = " " if name == "tale" else ""  # its texts start with a space
    automaton = compiled(tokenizer, regex=lead + r"(?:[a-zé日]+ )*\d{2}[.!]?")
    for text, expected in (
        *(("hello 42", True), ("déjà 42", False), ("é日 the 42!", True), ("42.", True)),
        *(("hello 4", False), ("hello  42", False), ("", False)),
    ):
        assert reads(automaton, tokenizer.encode(text)) == (expected and text != "")
    for seed in range(30):
        text = walk(automaton, tokenizer, seed)
        assert text is None or re.fullmatch(lead + r"(?:[a-zé日]+ )*[0-9]{2}[.!]?", text)


def test_byte_tokens_spell_characters_together(tale):
    automaton = compiled(tale, regex=" 😀")
    ids = [
        tale.token_to_id("<0x20>"),
        *(tale.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()),
    ]
    assert reads(automaton, ids)
    assert not reads(automaton, ids[:-1])


def test_control_tokens_are_never_part_of_an_answer(ripple):
    automaton = compiled(ripple, regex=r"(?s:.)*")
    for id in ripple.special_ids:
        assert int(automaton.token_class[id]) == 0
    assert reads(automaton, ripple.encode("anything at all <|endoftext|>"))


def test_a_first_space_that_the_tokenizer_drops_is_not_part_of_the_answer():
    tokenizer = stripping_tokenizer()
    assert tokenizer.drops_first_space
    constraint = Constraint("choices", ("yes", "no yes"))
    size = tokenizer.vocab_size
    first = compile_constraint(tokenizer, constraint, vocab_size=size)
    inside = compile_constraint(tokenizer, constraint, vocab_size=size, at_start=False)
    ids = [tokenizer.token_to_id(piece) for piece in ("▁yes", "yes", "▁no", "n", "o")]
    marked, plain, no, n, o = (id for id in ids if id is not None)
    for answer in ([marked], [plain], [no, marked], [n, o, marked]):
        assert tokenizer.decode(answer) in constraint.value
        assert reads(first, answer)
    assert not reads(first, [no, plain])
    assert [reads(inside, answer) for answer in ([marked], [plain])] == [False, True]


def test_anchors_at_both_ends_are_left_out(ripple):
    for pattern in ("^ab$", r"\Aab\z", "ab", r"\Aab\Z", "^ab", r"^[^\]$]b$"):
        automaton = compiled(ripple, regex=pattern)
        assert reads(automaton, ripple.encode("ab"))
        assert not reads(automaton, ripple.encode("^ab"))
    automaton = compiled(ripple, regex=r"[a^$]\$")
    assert reads(automaton, ripple.encode("^$"))


def test_digits_words_and_spaces_are_ascii(ripple):
    automaton = compiled(ripple, regex=r"[\w-]+\s\d\D[^\S ]\\d")
    assert reads(automaton, ripple.encode("a-b_9 7x\t\\d"))
    assert not reads(automaton, ripple.encode("é 7x\t\\d"))
    assert not reads(automaton, ripple.encode("a ٣x\t\\d"))
    assert not reads(automaton, ripple.encode("a-b_9 7x \\d"))


def test_choices_need_no_library(ripple, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    automaton = compiled(ripple, choices=["fig", "figure", "pear tree"])
    for text in ("fig", "figure", "pear tree", "pear", "figu", ""):
        assert reads(automaton, ripple.encode(text)) == (text in ("fig", "figure", "pear tree"))
    with pytest.raises(MissingExtraError, match=r"pip install -e '.*\[constrain\]'"):
        compiled(ripple, regex="never compiled before")


@given(st.lists(st.text("ab é", max_size=5), min_size=1, max_size=9, unique=True), st.text("ab é"))
@QUICK
def test_automaton_of_choices_is_the_smallest_one(choices, text):
    made = module._from_choices(choices)
    ends = made.accepting.nonzero()[:, 0].tolist()
    assert len(made.next) == len(minimize(Automaton(made.next.tolist(), ends)).rows)
    for one in (*choices, text):
        state = 0
        for byte in one.encode():
            state = int(made.next[state, made.byte_class[byte]]) if state >= 0 else -1
        assert (state >= 0 and bool(made.accepting[state])) == (one in choices)


@pytest.mark.slow
def test_long_choice_is_compiled_in_linear_time(ripple):
    start = time.process_time()
    made = compile_constraint(
        ripple, check_constraint(choices=["a" * 12_000]), vocab_size=ripple.vocab_size
    )
    assert time.process_time() - start < 15
    assert made.states >= 12_000


def test_compiled_automata_are_kept_and_bounded(ripple, monkeypatch):
    one = compiled(ripple, choices=["kept"])
    assert compiled(ripple, choices=["kept"]) is one
    assert compiled(Tokenizer.load(HOME / "ripple"), choices=["kept"]) is one
    monkeypatch.setattr(module, "KEPT_BYTES", 1)
    compiled(ripple, choices=["another"])
    assert compiled(ripple, choices=["kept"]) is not one


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}


def test_a_schema_is_a_dictionary_a_text_or_a_model_class():
    class Person(pydantic.BaseModel):
        name: str
        age: int = 0

    expected = Constraint("schema", json.dumps(PERSON))
    assert (
        check_constraint(schema=PERSON) == check_constraint(schema=json.dumps(PERSON)) == expected
    )
    made = check_constraint(schema=Person)
    assert made is not None
    assert json.loads(str(made.value))["properties"].keys() == {"name", "age"}
    assert check_constraint() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, "parentheses do not match"),
        ({"regex": "[a"}, "syntax is wrong"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "No text matches"),
        ({"regex": r"(a)\1"}, "back-reference"),
        ({"regex": "a" * 70_000}, "more than 65536"),
        ({"regex": 7}, "regex must be a text"),
        ({"regex": "\ud800"}, "lone surrogate"),
        ({"regex": "a{0,20000}"}, "more than 16384|takes longer than"),
        ({"regex": "a", "choices": ["b"]}, "cannot be combined"),
        ({"regex": "a)|(b"}, "parentheses do not match"),
        ({"regex": "(^a)|b"}, "may stand only at its start or its end"),
        ({"regex": r"a\zb"}, r"\\z may stand only at its start or its end"),
        ({"regex": "(?x) a # b"}, "flag x"),
        pytest.param(
            {"schema": {"type": "string", "maxLength": 20000}},
            "The schema needs|The schema takes",
            marks=pytest.mark.slow,
        ),
        ({"choices": []}, "choices must be a list"),
        ({"choices": "yes"}, "choices must be a list"),
        ({"choices": [1]}, "choices must be a list"),
        ({"choices": ["x" * 70_000]}, "the limits are"),
        ({"schema": "{"}, "must be a JSON schema"),
        ({"schema": 3}, "must be a dictionary"),
        ({"schema": {"type": "string", "x": {1}}}, "must be a JSON schema"),
        ({"schema": {"$ref": "#"}}, "recursive"),
        (
            {"schema": {"type": "object", "properties": {"child": {"$ref": "#"}}}},
            "recursive",
        ),
        ({"schema": {"not": {}}}, "'not', which is not supported"),
        ({"schema": {"type": "integer", "multipleOf": 3}}, "integer with multipleOf"),
        ({"schema": {"type": "number", "minimum": 0}}, "number with minimum"),
        ({"schema": {"type": "array", "uniqueItems": True}}, "array with uniqueItems"),
        ({"schema": {"type": "string", "format": "hostname"}}, "format 'hostname'"),
        ({"schema": {"type": "string", "pattern": ".*"}}, "can match a quote"),
        ({"schema": {"type": "object", "required": ["a"]}}, "'a', which is not in its"),
        ({"schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "use anyOf"),
        ({"schema": {"allOf": [{"type": "string"}, {"maxLength": 3}]}}, "allOf"),
        ({"schema": {"$ref": "#/$defs/nothing"}}, "does not exist"),
        ({"schema": {"$ref": "http://example.com"}}, "only references to itself"),
        ({"schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "above its maximum"),
        ({"schema": {"enum": [1], "type": "string"}}, "No value in the schema's enum or const"),
        ({"schema": False}, "no value satisfies"),
        ({"schema": {"enum": [float("nan")]}}, "must be a JSON schema"),
        ({"schema": '{"const": Infinity}'}, "must be a JSON schema"),
        ({"schema": {"oneOf": [{"const": 1}, {"const": 1.0}]}}, "use anyOf"),
        ({"schema": {"oneOf": [{"enum": [[1]]}, {"enum": [[1.0], "x"]}]}}, "use anyOf"),
        ({"schema": {"const": True, "enum": [1]}}, "No value in the schema's enum or const"),
        ({"choices": range(10**9)}, "the limit is 4096"),
        ({"schema": {"type": [["string"]]}}, "unknown type"),
        ({"schema": {"type": {"a": 1}}}, "unknown type"),
        ({"schema": {"const": 1, "enum": 5}}, "enum must be a list"),
        ({"schema": {"const": float("nan")}}, "must be a JSON schema"),
        ({"schema": {"properties": {"a": {}}, "required": [["a"]]}}, "required a list of names"),
        ({"schema": {"properties": {"a": {}}, "required": "a"}}, "required a list of names"),
        ({"schema": {"type": "string", "format": ["date"]}}, "uses the format"),
        ({"schema": {"oneOf": [{"enum": 5}, {"enum": 6}]}}, "use anyOf"),
        ({"schema": {"oneOf": [{"type": "object", "required": 5}] * 2}}, "use anyOf"),
        ({"schema": {"oneOf": [{"type": "object", "required": [["a"]]}] * 2}}, "use anyOf"),
        (
            {"schema": {"oneOf": [{"type": "object", "required": ["a"], "properties": 5}] * 2}},
            "use anyOf",
        ),
        ({"schema": type("Raising", (), {"model_json_schema": staticmethod(print)})}, "dictionary"),
        ({"schema": {"enum": nested_lists(100_000)}}, "must be a JSON schema"),
    ],
    ids=lambda value: quote(value)[:60],
)
def test_wrong_constraints_are_refused_with_one_sentence(ripple, options, message):
    with pytest.raises(OptionError, match=message) as caught:
        compiled(ripple, **options)
    assert len(str(caught.value)) < 400
    assert caught.value.option in options


def doubling(levels: int, kind: str) -> dict[str, Any]:
    """Return a short schema that refers to the next level four times at each level."""
    parts = {f"d{n}": {kind: [{"$ref": f"#/$defs/d{n + 1}"}] * 4} for n in range(levels)}
    return {"$defs": {**parts, f"d{levels}": {"type": "null"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (nested_schema(31), "more than 65536 characters"),
        (doubling(15, "anyOf"), "more than 16384 parts"),
        (doubling(15, "prefixItems"), "more than 65536 characters"),
        ({"properties": {f"p{n}": {} for n in range(3000)}}, "more than 65536 characters"),
        ({"properties": {f"p{n}": {"type": "null"} for n in range(1000)}}, "more than 65536"),
    ],
    ids=["lists", "anyOf", "prefixItems", "properties", "optional"],
)
def test_short_schemas_of_long_expressions_are_refused_at_once(schema, message):
    # Each level doubles the expression: without a limit, these fill the memory.
    with time_limit(5), pytest.raises(OptionError, match=message):
        to_regex(schema)


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", ["(?:a|b)*a(?:a|b){30}", "((a{0,100}){0,100}){0,100}", r"\p{L}{0,3000}"]
)
def test_patterns_of_catastrophic_size_end_in_time(ripple, pattern):
    with pytest.raises(OptionError, match=r"takes longer than|more than"):
        compiled(ripple, regex=pattern)
    assert reads(compiled(ripple, regex="still alive"), ripple.encode("still alive"))


def test_a_vocabulary_that_cannot_spell_the_answers_is_refused():
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(backend, settings={}, config={})
    assert compiled(tokenizer, choices=["ab", "c"]).shortest() == 2
    with pytest.raises(OptionError, match="cannot spell"):
        compiled(tokenizer, choices=["c"])


def test_a_tokenizer_whose_tokens_are_not_bytes_is_refused():
    backend = Backend(models.WordLevel(vocab={"a": 0}, unk_token="a"))
    tokenizer = Tokenizer(backend, settings={}, config={})
    with pytest.raises(OptionError, match="need a tokenizer whose tokens are bytes"):
        compiled(tokenizer, choices=["a"])


def test_pinned_tokens_are_the_structure_of_an_answer(ripple):
    schema = {
        "type": "object",
        "properties": {"fruit": {"enum": ["fig", "pear"]}, "note": {"type": "string"}},
        "required": ["fruit", "note"],
    }
    text = '{ "fruit": "pear", "note": "{x}"}'
    expected = '{_"fruit":_"_ear",_"note":_"____}'
    for tokenizer in (ripple, byte_tokenizer()):
        ids = tokenizer.encode(text)
        marks = pinned_tokens(
            tokenizer, compiled(tokenizer, schema=schema), [*ids, *tokenizer.special_ids]
        )
        assert not any(marks[len(ids) :])
        pieces = [tokenizer.decode([id]) for id in ids]
        found = "".join(
            one.replace(" ", "_") if mark else "_" * len(one)
            for one, mark in zip(pieces, marks, strict=False)
        )
        assert all(one in ("_", other) for one, other in zip(found, expected, strict=True))
        assert "fruit" in found
        assert found.startswith("{")
    assert found == expected  # with one token per byte, every byte counts


def test_pinned_bytes_of_tiny_languages():
    tokenizer = byte_tokenizer()
    for pattern, text, expected in (
        *(("abc", "abc", "abc"), ("a(b|c)d", "abd", "a_d"), ("ab?", "ab", "a_")),
        *(("a*b", "aab", "___"), (" a ?b", " a b", "_a_b"), ("(xy|xz)", "xy", "x_")),
    ):
        automaton = compiled(tokenizer, regex=pattern)
        marks = pinned_tokens(tokenizer, automaton, tokenizer.encode(text))
        found = "".join(one if mark else "_" for one, mark in zip(text, marks, strict=True))
        assert found == expected, pattern


# -- random constraints ---------------------------------------------------------------------------


def check_pattern(tokenizer: Tokenizer, pattern: str) -> None:
    automaton = compiled(tokenizer, regex=pattern)
    for seed in range(8):
        text = walk(automaton, tokenizer, seed)
        assert text is None or re.fullmatch(pattern, text, re.DOTALL), (pattern, text)


@QUICK
@given(PATTERNS)
def test_random_answers_match_their_pattern(pattern):
    check_pattern(Tokenizer.load(HOME / "ripple"), pattern)


@pytest.mark.slow
@settings(QUICK, max_examples=400)
@given(PATTERNS)
def test_many_random_answers_match_their_pattern(pattern):
    check_pattern(Tokenizer.load(HOME / "ripple"), pattern)


SHORT_TEXTS = ["".join(text) for size in range(5) for text in product("ab7.x", repeat=size)]


def accepted(language: Any, texts: Iterable[str]) -> list[bool]:
    rows, classes, ends = (part.tolist() for part in language)
    found = []
    for text in texts:
        state = 0
        for byte in text.encode():
            state = rows[state][classes[byte]] if state >= 0 else -1
        found.append(state >= 0 and ends[state])
    return found


def check_texts(pattern: str, texts: list[str]) -> None:
    """Check that exactly the texts that Python matches are accepted."""
    language = module._from_regex(Constraint("regex", pattern))
    found = zip(texts, accepted(language, texts), strict=True)
    expected = re.compile(pattern, re.DOTALL)
    assert not [text for text, is_in in found if is_in != bool(expected.fullmatch(text))]


@QUICK
@given(PATTERNS, st.text("ab7é日. thexyc", max_size=8))
def test_automata_agree_with_python_about_texts(pattern, text):
    check_texts(pattern, [*SHORT_TEXTS, text])


@pytest.mark.slow
@settings(QUICK, max_examples=60)
@given(PATTERNS)
def test_automata_agree_with_python_about_all_short_texts(pattern):
    check_texts(pattern, SHORT_TEXTS)


@pytest.mark.parametrize(
    "pattern", ["a|ab|abc", "a??", "(?:a|ab)(?:7|77)?x*?", r"\d+|\d+\.\d+", "|a", "(?:ab?){2}|a"]
)
def test_every_alternative_of_a_pattern_is_kept(pattern):
    check_texts(pattern, SHORT_TEXTS)


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        ({"type": "number"}, ["1", "1.5", "-0.25e3"]),
        ({"type": "integer", "minimum": 0, "maximum": 99}, ["0", "4", "42", "99"]),
        ({"enum": [1, 10, 100]}, ["1", "10", "100"]),
        ({"type": "object"}, ["{}", '{"a":[1,{"b": null}]}']),
        ({"type": "array"}, ["[]", '[1.5,"a"]']),
        ({"type": "string", "maxLength": 20}, ['""', f'"{"é" * 20}"']),
    ],
    ids=str,
)
def test_ordinary_schemas_keep_their_texts(schema, texts):
    start = time.process_time()
    language = module._from_regex(Constraint("schema", json.dumps(schema)))
    assert time.process_time() - start < 5
    assert all(accepted(language, texts))
    assert not any(accepted(language, ["{", "100.", '"', ""]))


@given(st.integers(0, 999))
@QUICK
def test_minimized_automata_keep_their_language(seed):
    source = random.Random(seed)
    count, letters = source.randrange(1, 9), 2
    rows = [[source.randrange(-1, count) for _ in range(letters)] for _ in range(count)]
    ends = [state for state in range(count) if source.random() < 0.4]
    small = minimize(Automaton(rows, ends))

    def reads_word(automaton: Automaton, word: tuple[int, ...], state: int = 0) -> bool:
        for letter in word:
            state = automaton.rows[state][letter] if state >= 0 else -1
        return state in automaton.accepting

    words = [word for size in range(9) for word in product(range(letters), repeat=size)]
    found = {
        tuple(reads_word(Automaton(rows, ends), word, at) for word in words[:127])
        for at in range(count)
    }
    assert len(small.rows) <= len(found)
    if small.rows:
        assert all(
            reads_word(small, word) == reads_word(Automaton(rows, ends), word) for word in words
        )
        again = {
            tuple(reads_word(small, word, at) for word in words) for at in range(len(small.rows))
        }
        assert len(again) == len(small.rows)  # no two states are equal
    else:
        assert not any(reads_word(Automaton(rows, ends), word) for word in words)


@pytest.mark.slow
def test_long_pattern_is_compiled_in_bounded_time(ripple):
    start = time.process_time()
    assert compiled(ripple, regex="a{15000}").states >= 15_000
    assert time.process_time() - start < 5


def check_schema(tokenizer: Tokenizer, schema: Any) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    automaton = compiled(tokenizer, schema=schema)
    for seed in range(6):
        text = walk(automaton, tokenizer, seed, longest=120)
        if text is not None:
            validator.validate(json.loads(text))


@QUICK
@given(SCHEMAS)
def test_random_answers_satisfy_their_schema(schema):
    check_schema(Tokenizer.load(HOME / "ripple"), schema)


@pytest.mark.slow
@settings(QUICK, max_examples=300)
@given(SCHEMAS)
def test_many_random_answers_satisfy_their_schema(schema):
    check_schema(Tokenizer.load(HOME / "ripple"), schema)
