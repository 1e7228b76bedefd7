"""Random regular expressions and JSON schemas that the compiler supports."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

QUICK = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
ATOMS = st.sampled_from(
    ["a", "b", "7", "é", "日", r"\.", " ", "[a-c]", "[^a]", r"\d", "the", "x?", "y{1,2}"]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        inner.map(lambda one: f"(?:{one})*"),
        inner.map(lambda one: f"(?:{one})?"),
        inner.map(lambda one: f"(?:{one}){{1,3}}"),
    ),
    max_leaves=8,
)

NAMES = st.sampled_from(["name", "a b", 'q"', "日", "id"])


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(properties: dict[str, Any], keep: int) -> dict[str, Any]:
        required = [name for at, name in enumerate(properties) if keep >> at & 1]
        return {"type": "object", "properties": properties, "required": required}

    return st.builds(
        build, st.dictionaries(NAMES, inner, min_size=1, max_size=3), st.integers(0, 7)
    )


BOUNDS = st.tuples(st.integers(-200, 200), st.integers(0, 300))
SCHEMAS = st.recursive(
    st.one_of(
        st.sampled_from(
            [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]
        ),
        BOUNDS.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[0] + b[1]}),
        st.integers(-99, 99).map(lambda low: {"type": "integer", "exclusiveMinimum": low}),
        st.integers(0, 4).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 3}),
        st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email"]).map(
            lambda name: {"type": "string", "format": name}
        ),
        st.lists(st.sampled_from([1, "x", None, True, 'a"b', [1], {"k": 2}]), min_size=1).map(
            lambda values: {"enum": values}
        ),
        st.just({"type": "string", "pattern": "^[a-c]{2,4}$"}),
        st.just({"type": ["string", "null"]}),
    ),
    lambda inner: st.one_of(
        objects(inner),
        st.tuples(inner, st.integers(0, 2)).map(
            lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1], "maxItems": 3}
        ),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda parts: {"type": "array", "prefixItems": parts, "items": False}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts}),
        inner.map(lambda one: {"type": "object", "additionalProperties": one}),
    ),
    max_leaves=4,
)
