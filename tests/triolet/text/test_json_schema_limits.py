"""What would take native code too deep or too long is refused before it gets there."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from triolet.text.json_schema_limits import (
    MAX_DEPTH,
    MAX_OPTIONAL,
    MAX_PATTERNS,
    MAX_REFERENCED_DEPTH,
    SchemaError,
    check_limits,
)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def chain(length: int) -> dict[str, Any]:
    definitions = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{length}": {}}}


def test_depth_is_bounded() -> None:
    check_limits(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 100_000):
        with pytest.raises(SchemaError, match="nested more than 100 deep"):
            check_limits(nested(depth))


def test_the_depth_of_what_is_referenced_counts_together() -> None:
    check_limits(chain(MAX_REFERENCED_DEPTH // 2 - 3))
    with pytest.raises(SchemaError, match=r"\$ref: what is referenced is \d+ deep together"):
        check_limits(chain(MAX_REFERENCED_DEPTH))


def test_optional_properties_are_bounded() -> None:
    properties: dict[str, Any] = {f"p{i}": {} for i in range(MAX_OPTIONAL + 1)}
    check_limits({"properties": properties, "required": ["p0"]})
    with pytest.raises(SchemaError, match="properties: 401 of one object are optional"):
        check_limits({"properties": properties})


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_patterns_for_one_string_are_bounded(keyword: str) -> None:
    patterns = [{"pattern": "a"}, {"format": "date"}] * (MAX_PATTERNS // 2)
    check_limits({keyword: patterns})
    with pytest.raises(SchemaError, match="pattern: a string may have to follow more"):
        check_limits({keyword: [*patterns, {"pattern": "b"}]})


def test_patterns_of_different_strings_are_not_counted_together() -> None:
    check_limits({"properties": {f"p{i}": {"pattern": "a"} for i in range(100)}})


def test_patterns_are_counted_along_references() -> None:
    definitions: dict[str, Any] = {
        f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "pattern": "a"} for i in range(MAX_PATTERNS + 1)
    }
    definitions[f"d{MAX_PATTERNS + 1}"] = {"$ref": "#/$defs/d0"}
    with pytest.raises(SchemaError, match="pattern"):
        check_limits({"$ref": "#/$defs/d0", "$defs": definitions})


def test_a_reference_to_nothing_is_named() -> None:
    for reference in ("#/$defs/a", "#/$defs/list/2", "#/$defs/list/x"):
        with pytest.raises(SchemaError, match=re.escape(f"$ref: there is nothing at '{reference}'")):
            check_limits({"$ref": reference, "$defs": {"list": [1, 2]}})


def test_the_place_of_a_reference_to_nothing_is_told() -> None:
    schema = {"anyOf": [{"type": "null"}, {"properties": {"a/b": {"$ref": "#/$defs/a"}}}]}
    with pytest.raises(SchemaError, match=r"^at #/anyOf/1/properties/a~1b: \$ref: there is nothing"):
        check_limits(schema)


def test_the_check_itself_ends_soon() -> None:
    """Definitions that all refer to one another: as many ways as there are permutations."""
    names = [f"d{i}" for i in range(150)]
    definitions = {name: {"anyOf": [{"$ref": f"#/$defs/{other}"} for other in names]} for name in names}
    began = time.thread_time()
    with pytest.raises(SchemaError, match="pattern: a string may have to follow more"):
        check_limits({"$ref": "#/$defs/d0", "$defs": definitions})
    assert time.thread_time() - began < 30  # else it would not end at all
