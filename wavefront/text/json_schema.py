"""Turn a JSON schema into a regular expression whose every match is valid for the schema.

The expression may describe fewer texts than the schema allows, but never others: properties come in
the order of the schema, and none is added. A keyword that cannot be enforced is an error, so no
answer breaks a rule in silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from wavefront.core.errors import OptionError, quote
from wavefront.text.pattern import whole_text

Schema = Mapping[str, Any] | bool

DEPTH = 3  # levels of lists and objects in a value without a schema
NESTING_LIMIT = 32  # levels of a schema
PART_LIMIT = 1 << 14  # parts of a schema; a part that is referred to twice counts twice
REGEX_LIMIT = 1 << 16  # characters of the expression of a part
SPACE = "[ ]?"
# A character of a string: anything but quotes, backslashes and control characters, or an escape.
CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
STRING = f'"{CHARACTER}*"'
INTEGER = "-?(?:0|[1-9][0-9]{0,17})"
NUMBER = r"-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?"
_DATE = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_HEX = "[0-9a-f]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
FORMATS = {
    "date": _DATE,
    "time": f"{_TIME}{_ZONE}",
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "email": rf"[a-z0-9_]+(?:\.[a-z0-9_]+)*@(?:{_LABEL}\.)+[a-z]{{2,8}}",
}
# Keywords that say nothing about the value, or that are read elsewhere.
ANNOTATIONS = {
    *("title", "description", "default", "examples", "example", "deprecated", "readOnly"),
    *("writeOnly", "$schema", "$id", "$comment", "$anchor", "$defs", "definitions"),
    *("discriminator", "contentEncoding", "contentMediaType"),
}
KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set[str](),
    "boolean": set[str](),
    "null": set[str](),
}
# Keywords that limit one type only, and that cannot be enforced.
UNSUPPORTED = {
    "object": {
        *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependencies"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    },
    "array": {"contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems"},
    "integer": {"multipleOf"},
    "number": {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
}
COMBINERS = {"$ref", "enum", "const", "anyOf", "oneOf", "allOf", "type"}


def to_regex(schema: Schema) -> tuple[str, list[str]]:
    """Return a regular expression for the values of a schema, and the patterns of its strings.

    No pattern may match a quote, a backslash or a control character; the caller checks this.

    Raises:
        OptionError: The schema is recursive or too large, contradicts itself, or has an unsupported
            keyword.
    """
    writer = _Writer(schema)
    return writer.value(schema, ()), writer.patterns


def _error(message: str) -> OptionError:
    return OptionError(message, option="schema")


class _Writer:
    """Writes the regular expression of one schema."""

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.patterns: list[str] = []
        self.parts = 0  # written so far

    def value(self, schema: Any, refs: tuple[str, ...], depth: int = 0) -> str:
        """Return the expression of the values of a schema; `refs` are those being resolved.

        The expression of a list repeats that of its items, so a short schema of nested lists, or of
        references, can have an expression of any length. So every part is checked.
        """
        if depth > NESTING_LIMIT:
            raise _error(f"The schema is nested more than {NESTING_LIMIT} levels deep.")
        self.parts += 1
        if self.parts > PART_LIMIT:
            raise _error(f"The schema has more than {PART_LIMIT} parts, references included.")
        return _check_size(self._value(schema, refs, depth))

    def _value(self, schema: Any, refs: tuple[str, ...], depth: int) -> str:
        if schema is False:
            raise _error("A part of the schema is false, which no value satisfies.")
        if schema is True:
            return _any_value(DEPTH)
        if not isinstance(schema, Mapping):
            raise _error(f"A schema must be an object or true, not {quote(schema)}.")
        keys = {str(key) for key in schema} - ANNOTATIONS
        self._check_keywords(schema, keys)
        for name in ("$ref", "allOf", "anyOf", "oneOf"):
            if name in keys:
                if beside := sorted(keys - {name}):
                    raise _error(f"The schema combines {name} with {beside[0]}: use one of them.")
                return getattr(self, "_" + name.strip("$").lower())(schema[name], refs, depth)
        if "const" in keys or "enum" in keys:
            return self._listed(schema, keys)
        return _either(
            [self._typed(kind, schema, refs, depth=depth) for kind in _types(schema, keys)]
        )

    def _check_keywords(self, schema: Mapping[str, Any], keys: set[str]) -> None:
        kinds = set(_types(schema, keys))
        for key in sorted(keys - COMBINERS):
            owners = [kind for kind, known in KEYWORDS.items() if key in known]
            refused = [kind for kind, known in UNSUPPORTED.items() if key in known]
            if not owners and not refused:
                raise _error(f"The schema uses {quote(key)}, which is not supported.")
            if kinds.intersection(refused) and schema[key] is not False:
                kind = sorted(kinds.intersection(refused))[0]
                raise _error(
                    f"The schema limits a value of type {kind} with {key}, which is not supported."
                )

    def _ref(self, target: Any, refs: tuple[str, ...], depth: int) -> str:
        if not isinstance(target, str) or not target.startswith("#"):
            raise _error(f"The schema refers to {quote(target)}: only references to itself work.")
        if target in refs:
            raise _error(f"The schema is recursive at {quote(target)}, which is not supported.")
        found: Any = self.root
        for part in target[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or part not in found:
                raise _error(f"The schema refers to {quote(target)}, which does not exist.")
            found = found[part]
        return self.value(found, (*refs, target), depth + 1)

    def _allof(self, parts: Any, refs: tuple[str, ...], depth: int) -> str:
        if not isinstance(parts, Sequence) or len(parts) != 1:
            raise _error("The schema uses allOf with several parts, which is not supported.")
        return self.value(parts[0], refs, depth + 1)

    def _anyof(self, parts: Any, refs: tuple[str, ...], depth: int) -> str:
        return _either(
            [self.value(part, refs, depth + 1) for part in _checked_list("anyOf", parts)]
        )

    def _oneof(self, parts: Any, refs: tuple[str, ...], depth: int) -> str:
        listed = _checked_list("oneOf", parts)
        resolved = [self._follow(part) for part in listed]
        if not _are_disjoint(resolved):
            raise _error(
                "The schema uses oneOf with parts that the same value can satisfy: use anyOf."
            )
        return self._anyof(listed, refs, depth)

    def _follow(self, schema: Any) -> Any:
        """Return what a reference refers to, for one level."""
        target = schema.get("$ref") if isinstance(schema, Mapping) else None
        found: Any = self.root
        if not isinstance(target, str):
            return schema
        for part in target.split("/")[1:]:
            found = found.get(part, {}) if isinstance(found, Mapping) else {}
        return found

    def _listed(self, schema: Mapping[str, Any], keys: set[str]) -> str:
        values = [schema["const"]] if "const" in keys else _checked_list("enum", schema["enum"])
        if beside := sorted(keys - {"const", "enum", "type"}):
            raise _error(f"The schema combines a list of values with {beside[0]}: use one of them.")
        kinds = _types(schema, keys) if "type" in keys else tuple(KEYWORDS)
        kept = [value for value in values if any(_has_type(value, kind) for kind in kinds)]
        if "const" in keys and "enum" in keys:
            others = [_canonical(value) for value in _checked_list("enum", schema["enum"])]
            kept = [value for value in kept if _canonical(value) in others]
        if not kept:
            raise _error("No value in the schema's enum or const is allowed by its other keywords.")
        return _either([escape(json.dumps(value, ensure_ascii=False)) for value in kept])

    def _typed(
        self, kind: str, schema: Mapping[str, Any], refs: tuple[str, ...], *, depth: int
    ) -> str:
        if kind == "object":
            return self._object(schema, refs, depth)
        if kind == "array":
            return self._array(schema, refs, depth)
        if kind == "string":
            return self._string(schema)
        if kind == "integer":
            return _integer(schema)
        return {"number": NUMBER, "boolean": "(?:true|false)", "null": "null"}[kind]

    def _object(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> str:
        named, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(named, Mapping) or not _is_list_of_names(required):
            raise _error(
                "In the schema, properties must be an object and required a list of names."
            )
        required = dict.fromkeys(required)
        if missing := [name for name in required if name not in named]:
            raise _error(
                f"The schema requires {quote(missing[0])}, which is not in its properties."
            )
        if not named:
            more = schema.get("additionalProperties", True)
            inner = _any_value(DEPTH - 1) if more is True or more == {} else None
            if more is False:
                return rf"\{{{SPACE}\}}"
            if inner is None:
                inner = self.value(more, refs, depth + 1)
            return _object_of(inner)
        pairs = [
            f"{escape(json.dumps(name, ensure_ascii=False))}{SPACE}:{SPACE}"
            + self.value(part, refs, depth + 1)
            for name, part in named.items()
        ]
        needed = [name in required for name in named]
        return rf"\{{{SPACE}{_properties(pairs, needed)}{SPACE}\}}"

    def _array(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> str:
        items, fixed = schema.get("items", True), schema.get("prefixItems", [])
        if not isinstance(fixed, Sequence) or isinstance(items, list):
            raise _error("In the schema, prefixItems must be a list and items must be a schema.")
        low, high = _count(schema, "minItems", 0), _count(schema, "maxItems", None)
        first = [self.value(part, refs, depth + 1) for part in fixed]
        if items is False and high is None:
            high = len(first)
        if (high is not None and high < low) or (items is False and low > len(first)):
            raise _error("The schema has a list that needs more items than it may have.")
        comma = f"{SPACE},{SPACE}"
        if high == 0:
            return rf"\[{SPACE}\]"
        inner = ""
        if high is None or high > len(first):
            if items is True or items == {}:
                item = _any_value(DEPTH - 1)
            else:
                item = self.value(items, refs, depth + 1)
            more = max(0, low - len(first))
            most = "" if high is None else str(high - len(first))
            if not first:
                rest = f"{{{max(0, more - 1)},{'' if high is None else high - 1}}}"
                body = f"{item}(?:{comma}{item}){rest}"
                inner = body if low > 0 else f"(?:{body})?"
                return rf"\[{SPACE}{inner}{SPACE}\]"
            inner = f"(?:{comma}{item}){{{more},{most}}}"
        # A list may end before all of its first items, if it is long enough.
        for number in reversed(range(len(first))):
            part = first[number] if number == 0 else comma + first[number]
            if high is not None and number >= high:
                inner = ""
            elif number < low:
                inner = part + inner
            else:
                inner = f"(?:{part}{inner})?"
        return rf"\[{SPACE}{inner}{SPACE}\]"

    def _string(self, schema: Mapping[str, Any]) -> str:
        asked = [key for key in ("pattern", "format") if key in schema]
        low, high = _count(schema, "minLength", 0), _count(schema, "maxLength", None)
        bounded = "minLength" in schema or "maxLength" in schema
        if len(asked) + bounded > 1:
            raise _error(
                "A string in the schema may have only one of pattern, format and length limits."
            )
        if asked == ["pattern"]:
            pattern = whole_text(schema["pattern"])
            self.patterns.append(pattern)
            return f'"(?:{pattern})"'
        if asked == ["format"]:
            if not isinstance(schema["format"], str) or schema["format"] not in FORMATS:
                raise _error(
                    f"The schema uses the format {quote(schema['format'])}; supported are "
                    f"{', '.join(FORMATS)}."
                )
            return f'"{FORMATS[schema["format"]]}"'
        if high is not None and high < low:
            raise _error("The schema has a string whose minLength is above its maxLength.")
        return f'"{CHARACTER}{{{low},{"" if high is None else high}}}"' if bounded else STRING


def escape(text: str) -> str:
    """Return the regular expression that matches exactly this text."""
    return "".join(f"\\{letter}" if letter in r".^$*+?{}[]|()\-&~#" else letter for letter in text)


def _either(parts: Sequence[str]) -> str:
    unique = list(dict.fromkeys(parts))
    return unique[0] if len(unique) == 1 else f"(?:{'|'.join(unique)})"


def _check_size(expression: str) -> str:
    if len(expression) > REGEX_LIMIT:
        raise _error(
            f"The expression of the schema has more than {REGEX_LIMIT} characters: nest fewer "
            "lists, or leave out properties that are not required."
        )
    return expression


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _checked_list(name: str, parts: Any) -> list[Any]:
    if not isinstance(parts, list | tuple) or not parts:
        raise _error(f"{name} must be a list with at least one entry in the schema.")
    return list(parts)


def _types(schema: Mapping[str, Any], keys: set[str]) -> tuple[str, ...]:
    """Return the types a value may have. Without `type`, the other keywords tell."""
    given = schema.get("type")
    if given is None:
        owners = [kind for kind, known in KEYWORDS.items() if keys & known]
        owners += [kind for kind, known in UNSUPPORTED.items() if keys & known]
        return tuple(dict.fromkeys(owners)) or tuple(KEYWORDS)
    listed = given if isinstance(given, list | tuple) else [given]
    for kind in listed:
        if not isinstance(kind, str) or kind not in KEYWORDS:
            raise _error(f"The schema has the unknown type {quote(kind)}.")
    if not listed:
        raise _error("The schema has an empty list of types.")
    return tuple(dict.fromkeys(listed))


def _count(schema: Mapping[str, Any], key: str, default: int | None) -> Any:
    value = schema.get(key, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is not default and (isinstance(value, bool) or not isinstance(value, int)):
        raise _error(f"{key} must be a whole number in the schema, not {quote(value)}.")
    if value is not None and value < 0:
        raise _error(f"{key} must not be negative in the schema.")
    return value


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    known: dict[str, tuple[type, ...]] = {
        "object": (Mapping,), "array": (list, tuple), "string": (str,), "integer": (int,),
        "number": (int, float), "null": (type(None),), "boolean": (),
    }  # fmt: skip
    whole = kind == "integer" and isinstance(value, float) and value.is_integer()
    return isinstance(value, known[kind]) or whole


def _are_disjoint(parts: Sequence[Any]) -> bool:
    """Return whether no value can satisfy two of the schemas, as far as is easy to see."""
    if not all(isinstance(part, Mapping) for part in parts):
        return False
    listed = [_values(part) for part in parts]
    if all(values is not None for values in listed):
        texts = [_canonical(value) for values in listed for value in values or ()]
        return len(texts) == len(set(texts))
    kinds = [part.get("type") for part in parts]
    if all(isinstance(kind, str) for kind in kinds) and len(set(kinds)) == len(kinds):
        return not {"integer", "number"} <= set(kinds)
    if all(kind == "object" for kind in kinds):
        required = [part.get("required", []) for part in parts]
        if not all(_is_list_of_names(names) for names in required):
            return False
        for name in set.intersection(*map(set, required)):
            named = [_property(part, name) for part in parts]
            if all(_values(one) is not None for one in named) and _are_disjoint(named):
                return True
    return False


def _canonical(value: Any) -> str:
    """Return a text that is equal for values that JSON Schema calls equal, such as 1 and 1.0."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, Mapping):
        pairs = sorted((json.dumps(str(key)), _canonical(one)) for key, one in value.items())
        return "{" + ",".join(f"{key}:{one}" for key, one in pairs) + "}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value)


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, Mapping) else {}


def _values(schema: Any) -> list[Any] | None:
    """Return the values that a schema lists, or None."""
    if not isinstance(schema, Mapping):
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed if isinstance(listed, list) else None


def _properties(pairs: Sequence[str], needed: Sequence[bool]) -> str:
    """Return the expression of properties in order, of which some may be missing."""
    comma = f"{SPACE},{SPACE}"
    rest = [""]  # what may follow property i, from the last one
    for pair, must in zip(reversed(pairs), reversed(needed), strict=True):
        follows = rest[-1]
        following = f"{comma}{pair}{follows}" if must else f"(?:{comma}{pair})?{follows}"
        rest.append(_check_size(following))
    opening = ""
    for number in reversed(range(len(pairs))):
        follows = rest[len(pairs) - 1 - number]
        first = pairs[number] + follows
        if needed[number]:
            opening = first
        else:
            opening = _check_size(f"(?:{first}|{opening})" if opening else f"(?:{first})?")
    return opening


def _object_of(value: str) -> str:
    pair, comma = f"{STRING}{SPACE}:{SPACE}{value}", f"{SPACE},{SPACE}"
    return rf"\{{{SPACE}(?:{pair}(?:{comma}{pair})*)?{SPACE}\}}"


def _any_value(depth: int) -> str:
    """Return the expression of any value with up to `depth` levels of lists and objects."""
    plain = f"(?:true|false|null|{NUMBER}|{STRING})"
    if depth <= 0:
        return plain
    inner, comma = _any_value(depth - 1), f"{SPACE},{SPACE}"
    array = rf"\[{SPACE}(?:{inner}(?:{comma}{inner})*)?{SPACE}\]"
    return f"(?:{plain}|{array}|{_object_of(inner)})"


def _integer(schema: Mapping[str, Any]) -> str:
    """Return the expression of an integer within its bounds."""
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    for key, value in (
        *(("minimum", low), ("maximum", high)),
        *(("exclusiveMinimum", over), ("exclusiveMaximum", under)),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise _error(f"{key} must be a number in the schema, not {quote(value)}.")
        if value is not None and not abs(value) < 10**15:
            raise _error(f"{key} is too large in the schema: at most 10^15.")
    lows = [-(-low // 1)] if low is not None else []
    lows += [over // 1 + 1] if over is not None else []
    highs = [high // 1] if high is not None else []
    highs += [-(-under // 1) - 1] if under is not None else []
    if not lows and not highs:
        return INTEGER
    least = int(max(lows)) if lows else None
    most = int(min(highs)) if highs else None
    if least is not None and most is not None and least > most:
        raise _error("The schema has a number whose minimum is above its maximum.")
    parts = []
    if least is None or least < 0:  # the negative numbers, by their absolute value
        nearest = 1 if most is None or most >= 0 else -most
        parts.append("-" + _at_least(nearest, None if least is None else -least))
    if most is None or most >= 0:
        parts.append(_at_least(max(0, least or 0) if least is not None else 0, most))
    return _either(parts)


def _at_least(low: int, high: int | None) -> str:
    """Return the expression of the numbers from `low`, which is not negative, to `high`."""
    if high is not None:
        return _either(_ranges(low, high))
    top = 10 ** len(str(max(1, low)))  # the next number with more digits
    return _either([*_ranges(low, top - 1), f"[1-9][0-9]{{{len(str(top)) - 1},17}}"])


def _ranges(low: int, high: int) -> list[str]:
    """Return expressions that together match the numbers from `low` to `high`."""
    if len(str(low)) < len(str(high)):
        edge = 10 ** len(str(low)) - 1
        return [*_ranges(low, edge), *_ranges(edge + 1, high)]
    one, two = str(low), str(high)
    if one == two:
        return [one]
    same = next(at for at in range(len(one)) if one[at] != two[at])
    head, rest = one[:same], len(one) - same - 1
    first, last = int(one[same]), int(two[same])
    found = []
    if rest and set(one[same + 1 :]) != {"0"}:
        found += _ranges(low, int(head + one[same] + "9" * rest))
        first += 1
    tail: list[str] = []
    if rest and set(two[same + 1 :]) != {"9"}:
        tail = _ranges(int(head + two[same] + "0" * rest), high)
        last -= 1
    if first <= last:
        digits = f"[{first}-{last}]" if first < last else str(first)
        found.append(head + digits + (f"[0-9]{{{rest}}}" if rest else ""))
    return found + tail
