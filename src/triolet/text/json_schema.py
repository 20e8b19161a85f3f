"""JSON schemas made ready for llguidance: what it would not enforce to the letter is refused or rewritten.

llguidance refuses the keywords that it knows of and does not implement, but passes over those that it has
never heard of, rounds large integers, lets map keys repeat, and recurses without a limit. Here every keyword
is known to be enforced or to be an annotation, every number is exact, and depth and size are bounded.

This module knows neither requests nor tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from triolet.text.json_formats import FORMAT_PATTERNS, SUPPORTED_FORMATS
from triolet.text.json_schema_limits import SchemaError, check_limits, escaped

__all__ = [
    "MAX_REGEX",
    "SchemaError",
    "failing_part",
    "meaning_of",
    "parse_schema",
    "prepare_schema",
    "subschemas",
]

MAX_EXACT = 2**53
"""llguidance reads numbers as doubles."""

HOLDS_ONE = frozenset({"additionalItems", "additionalProperties", "items"})
HOLDS_LIST = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
HOLDS_MAP = frozenset({"$defs", "definitions", "patternProperties", "properties"})
CONSTRAINTS = frozenset({
    "$ref", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "maxItems", "maxLength",
    "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "pattern",
    "required", "type",
})  # fmt: skip
ANNOTATIONS = frozenset({
    "$comment", "$id", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default",
    "deprecated", "description", "discriminator", "example", "examples", "externalDocs", "id", "readOnly",
    "title", "writeOnly", "xml",
})  # fmt: skip
NUMBERS = ("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
NEUTRAL: Mapping[str, Any] = {"uniqueItems": False, "nullable": False, "minContains": 0}
"""Values with which a keyword that cannot be enforced asks for nothing."""
REMEDIES = {
    "nullable": "write the type as a list with 'null' in it",
    "dependencies": "use anyOf with one object for each case",
    "dependentRequired": "use anyOf with one object for each case",
    "dependentSchemas": "use anyOf with one object for each case",
    "if": "use anyOf with one schema for each case",
    "unevaluatedProperties": "use additionalProperties",
    "uniqueItems": "remove it, and look for duplicates afterwards",
}
MEANINGS = {
    "oneOf constraints": "the branches of oneOf may overlap, so they cannot be enforced; use anyOf, or give "
    "each branch a required property with a different string as its const",
    "NoExtension": "it matches no text at all",
}
"""What llguidance's messages mean here, by their beginnings."""
REGEX_ERROR = re.compile(r"regex parse error: .* error: (?P<reason>.*)$")
MAX_REGEX = 4096
MAX_TRIALS = 200


def parse_schema(source: object) -> Any:
    """A schema given as JSON text or as a value; raises :class:`SchemaError` if it is neither."""
    if not isinstance(source, str):
        return source
    try:
        return json.loads(source)
    except RecursionError:
        raise SchemaError("#", "nested too deeply; flatten it") from None
    except ValueError as error:
        raise SchemaError("#", f"not JSON: {error}") from None


def prepare_schema(schema: Any) -> dict[str, Any]:
    """``schema`` as llguidance enforces it to the letter, in a new dict.

    Raises :class:`SchemaError`, which names the place and the keyword.
    """
    check_limits(schema)
    prepared = _prepare(schema, "#")
    _check_references(prepared)
    if prepared is False:
        raise SchemaError("#", "the schema false allows nothing")
    return {} if prepared is True else prepared


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas right below one, each with its JSON pointer from there."""
    for keyword, value in schema.items():
        if keyword in HOLDS_MAP and isinstance(value, Mapping):
            yield from ((f"/{keyword}/{escaped(name)}", part) for name, part in value.items())
        elif keyword in HOLDS_LIST and isinstance(value, list | tuple):
            yield from ((f"/{keyword}/{index}", part) for index, part in enumerate(value))
        elif keyword in HOLDS_ONE:
            yield f"/{keyword}", value


def failing_part(schema: dict[str, Any], error_of: Callable[[dict[str, Any]], str | None]) -> str | None:
    """The smallest part of ``schema`` for which ``error_of`` has an error: its place, keywords and error."""
    definitions: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    error, where, part = error_of(schema), "#", schema
    trials = iter(range(MAX_TRIALS))
    is_smaller = error is not None
    while is_smaller:
        is_smaller = False
        for (pointer, child), _ in zip(subschemas(part), trials, strict=False):
            if isinstance(child, dict) and (reason := error_of(definitions | child)):
                where, part, error, is_smaller = where + pointer, child, reason, True
                break
    return None if error is None else f"at {where} ({', '.join(part)}): {meaning_of(error)}"


def meaning_of(error: str) -> str:
    """One of llguidance's messages in terms of what the caller wrote."""
    if match := REGEX_ERROR.match(error):
        return f"invalid regular expression: {match['reason']}"
    return next((meaning for prefix, meaning in MEANINGS.items() if error.startswith(prefix)), error)


def _prepare(schema: Any, where: str) -> Any:
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        raise SchemaError(where, f"a schema is an object or a boolean, got {schema!r:.60}")
    prepared = {}
    for keyword, value in schema.items():
        if keyword in NEUTRAL and value == NEUTRAL[keyword] and type(value) is type(NEUTRAL[keyword]):
            continue
        _check_known(keyword, where)
        if keyword in CONSTRAINTS:
            _check_constraint(keyword, value, where)
        if keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            prepared[keyword] = _prepare_value(keyword, value, where)
    _check_object(schema, where)
    return _with_exact_format(prepared)


def _prepare_value(keyword: str, value: Any, where: str) -> Any:
    if keyword in HOLDS_MAP:
        if not isinstance(value, Mapping):
            raise SchemaError(where, f"{keyword}: must be an object")
        for name in value:
            _check_text(name, f"{where}/{keyword}")
            if keyword == "patternProperties":
                _check_regex(name, f"{where}/{keyword}")
        return {name: _prepare(part, f"{where}/{keyword}/{escaped(name)}") for name, part in value.items()}
    if keyword in HOLDS_LIST and isinstance(value, list | tuple):
        return [_prepare(part, f"{where}/{keyword}/{index}") for index, part in enumerate(value)]
    if keyword in HOLDS_ONE:
        return _prepare(value, f"{where}/{keyword}")
    if keyword in HOLDS_LIST:
        raise SchemaError(where, f"{keyword}: must be a list")
    return value


def _check_known(keyword: object, where: str) -> None:
    if not isinstance(keyword, str):
        raise SchemaError(where, f"keywords are strings, got {keyword!r}")
    is_known = keyword in HOLDS_ONE | HOLDS_LIST | HOLDS_MAP | CONSTRAINTS | ANNOTATIONS
    if keyword in ("$id", "id") and where != "#":
        is_known = False
    if keyword.startswith("x-") and keyword != "x-guidance":
        is_known = True
    if not is_known:
        known = HOLDS_ONE | HOLDS_LIST | HOLDS_MAP | CONSTRAINTS
        close = get_close_matches(keyword, known, n=1, cutoff=0.8)
        remedy = REMEDIES.get(keyword) or (f"did you mean {close[0]!r}?" if close else "remove it")
        raise SchemaError(where, f"the keyword {keyword!r} cannot be enforced; {remedy}")


def _check_constraint(keyword: str, value: Any, where: str) -> None:
    if keyword in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise SchemaError(where, f"{keyword}: must be a number, got {value!r:.60}")
    if keyword == "format" and value not in SUPPORTED_FORMATS:
        known = ", ".join(sorted(SUPPORTED_FORMATS))
        raise SchemaError(where, f"format: {value!r:.60} cannot be enforced; one of {known}, or a pattern")
    if keyword == "$ref" and not (isinstance(value, str) and (value == "#" or value.startswith("#/"))):
        raise SchemaError(where, f"$ref: only '#' and '#/…' in the same schema, got {value!r:.60}")
    if keyword == "pattern":
        _check_regex(value, f"{where}/pattern")
    if keyword in ("const", "enum") or keyword in NUMBERS:
        _check_value(value, f"{where}/{keyword}")
    if keyword == "required" and isinstance(value, list | tuple):
        for name in value:
            _check_text(name, f"{where}/required")


def _check_value(value: Any, where: str) -> None:
    """Whether llguidance writes a constant as it is; ``check_limits`` has bounded the depth."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_text(name, where)
            _check_value(part, where)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_value(part, where)
    elif isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, int | float) and not abs(value) <= MAX_EXACT:
        raise SchemaError(where, f"{value!r:.60} is not within ±2^53, where numbers are exact")


def _check_text(text: object, where: str) -> None:
    if not isinstance(text, str):
        raise SchemaError(where, f"must be a string, got {text!r:.60}")
    for character in text:
        if (character < " " and character not in "\n\r\t\b\f") or character == "\x7f":
            raise SchemaError(where, f"the control character {character!r} cannot be enforced; leave it out")
        if "\ud800" <= character <= "\udfff":
            raise SchemaError(where, f"the lone surrogate {character!r} is not text; leave it out")


def _check_regex(pattern: object, where: str) -> None:
    """The time that a regular expression takes grows with the square of its length."""
    if not isinstance(pattern, str) or len(pattern) > MAX_REGEX:
        raise SchemaError(where, f"must be a string of at most {MAX_REGEX} characters")


def _check_object(schema: Mapping[str, Any], where: str) -> None:
    """Keys that the schema does not list may repeat in the output, and repeated ones count once."""
    required = schema.get("required", ())
    num_required = len(set(required)) if isinstance(required, list | tuple) else 0
    least = schema.get("minProperties", 0)
    if isinstance(least, int | float) and least > num_required + 1:
        raise SchemaError(
            where,
            f"minProperties: at most one more than the {num_required} of 'required' can be enforced; "
            "list the keys in 'required'",
        )


def _with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    """llguidance takes 29 February in every year, and second 60 in every minute."""
    pattern = FORMAT_PATTERNS.get(schema.get("format", ""))
    if pattern is None:
        return schema
    exact = {keyword: value for keyword, value in schema.items() if keyword != "format"}
    others = exact.get("allOf", [])
    return exact | {"allOf": [*others, {"pattern": pattern}]}


def _check_references(schema: Any) -> None:
    """A reference to something that is no schema would be read as one, unchecked."""
    places, waiting, references = set[str](), [("#", schema)], dict[str, str]()
    while waiting:
        where, part = waiting.pop()
        places.add(where)
        if isinstance(part, Mapping):
            waiting.extend((where + pointer, child) for pointer, child in subschemas(part))
            if "$ref" in part:
                references[part["$ref"]] = where
    if unknown := references.keys() - places:
        reference = min(unknown)
        raise SchemaError(references[reference], f"$ref: there is no schema at {reference!r:.100}")
