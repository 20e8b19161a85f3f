"""JSON schemas of every feature: those that are enforced, and those that are refused with their keyword."""

from __future__ import annotations

from typing import Any

ANY_NAME = {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x"],
}
DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def text(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


def integer(**keywords: Any) -> dict[str, Any]:
    return {"type": "integer", **keywords}


def number(**keywords: Any) -> dict[str, Any]:
    return {"type": "number", **keywords}


def array(items: Any = None, **keywords: Any) -> dict[str, Any]:
    return {"type": "array", **({} if items is None else {"items": items}), **keywords}


def record(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False
    }  # fmt: skip


SCALARS: list[Any] = [
    {"type": "null"}, {"type": "boolean"}, {"const": True}, {"const": None}, {"const": "a b"}, {"const": 3},
    {"const": -2.5}, {"const": 'quoted "\\ \n'}, {"const": "héllo 😀"}, {"enum": ["red", "green", "blue"]},
    {"enum": [1, 2, 3]}, {"enum": [1, "one", None, True]}, {"enum": ["a", "ab", "abc"]},
    {"enum": [0.5, 1.5]}, {"enum": [""]}, {"type": "string", "enum": ["x", 5]},
    {"type": ["string", "null"], "maxLength": 4}, {"type": ["integer", "boolean"]},
    {"type": ["number", "null"], "minimum": 2, "maximum": 3}, {"const": [1, {"a": None}]},
    {"const": {"k": "v", "l": [True]}}, {"enum": [[], {}, [1, 2], {"a": 1}]},
]  # fmt: skip

NUMBERS: list[Any] = [
    integer(), number(), integer(minimum=0), integer(maximum=-3), integer(minimum=1, maximum=5),
    integer(minimum=-100, maximum=100), integer(exclusiveMinimum=0, exclusiveMaximum=4),
    integer(minimum=7, maximum=7), integer(minimum=2.5, maximum=4.5), integer(minimum=1000, maximum=123456),
    integer(multipleOf=5), integer(multipleOf=7, minimum=10, maximum=99), number(minimum=0, maximum=1),
    number(exclusiveMinimum=0), number(exclusiveMinimum=0, exclusiveMaximum=1),
    number(minimum=-1.5, maximum=2.25), number(multipleOf=0.5),
    number(multipleOf=0.25, minimum=0, maximum=10), number(minimum=1e-3, maximum=1e-2),
    {"minimum": 5, "maximum": 9}, integer(minimum=-(2**53), maximum=2**53), number(maximum=-0.125),
]  # fmt: skip

STRINGS: list[Any] = [
    text(), text(maxLength=0), text(maxLength=5), text(minLength=3, maxLength=3),
    text(minLength=1, maxLength=20), text(pattern="^[a-z]{2,5}$"), text(pattern="^\\d{3}-\\d{4}$"),
    text(pattern="b"), text(pattern="^a|b$", maxLength=8), text(pattern="^(foo|bar)+$"),
    text(pattern="^[^x]*$", maxLength=6), text(pattern="^\\w+$", maxLength=8),
    text(pattern="^[A-Z]", minLength=4, maxLength=6), text(pattern="^\\S+@\\S+$", maxLength=12),
    text(pattern="^\\u0041\\x42$"), text(pattern="^.{2}$"), text(pattern="^é+$", maxLength=3),
    text(pattern="^(?:[01]\\d|2[0-3]):[0-5]\\d$"), text(pattern="^#[0-9a-fA-F]{6}$"), text(pattern="^$"),
    text(pattern='^"\\\\"$'), text(format="date"), text(format="time"), text(format="date-time"),
    text(format="uuid"), text(format="ipv4"), text(format="ipv6"), text(format="email", maxLength=30),
    text(format="hostname"), text(format="uri", maxLength=30), text(format="duration"),
    text(format="date", pattern="^2024-02"), text(format="email", pattern="^a", maxLength=20),
    text(allOf=[{"pattern": "^a"}, {"pattern": "z$"}], maxLength=6), {"minLength": 2, "maxLength": 4},
    text(contentEncoding="base64", contentMediaType="text/plain", maxLength=4),
]  # fmt: skip

ARRAYS: list[Any] = [
    array(integer()), array(integer(minimum=0, maximum=9), maxItems=3),
    array(text(maxLength=3), minItems=2, maxItems=2), array(maxItems=0),
    array({"type": "boolean"}, minItems=1), array({"enum": ["a", "b"]}, minItems=3, maxItems=5),
    array(array(integer(maximum=9), maxItems=2), maxItems=2),
    array({"type": "null"}, minItems=4, maxItems=4),
    array(prefixItems=[integer(), text(maxLength=2)], items=False),
    array({"type": "boolean"}, prefixItems=[{"const": 1}]),
    array(prefixItems=[{"const": 1}, {"const": 2}], minItems=2, items={"const": 3}, maxItems=4),
    array({"anyOf": [integer(), {"type": "null"}]}, maxItems=3), array(POINT, maxItems=2), array(False),
    array(integer(), uniqueItems=False, maxItems=3), array(True, maxItems=2),
    {"minItems": 1, "maxItems": 2},
    {
        "$schema": DRAFT_7, "type": "array", "items": [integer(), {"type": "boolean"}],
        "additionalItems": False,
    },
    {
        "$schema": DRAFT_7, "type": "array", "items": [integer()], "additionalItems": {"type": "null"},
        "maxItems": 3,
    },
]  # fmt: skip

OBJECTS: list[Any] = [
    {"type": "object"}, record(), record(a=integer()), record(("a",), a=integer()),
    record(("b",), a=text(), b=integer()),
    record(("a", "b", "c"), a=text(maxLength=3), b={"type": "boolean"}, c={"type": "null"}), POINT,
    ANY_NAME,
    record(("outer",), outer=record(("inner",), inner=record(("leaf",), leaf=integer(maximum=3)))),
    {"type": "object", "required": ["a"]},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["z"]},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "additionalProperties": text(maxLength=2)},
    {
        "type": "object", "properties": {"id": integer()}, "additionalProperties": {"type": "boolean"},
        "required": ["id"],
    },
    {"type": "object", "patternProperties": {"^n_": integer()}, "additionalProperties": False},
    {"type": "object", "patternProperties": {"^a$": integer(), "^b": {"type": "null"}}},
    {"type": "object", "minProperties": 1, "additionalProperties": integer()},
    {"type": "object", "maxProperties": 0},
    {
        "type": "object", "properties": {"a": integer()}, "required": ["a"], "minProperties": 2,
        "maxProperties": 3,
    },
    record(
        ("a/b", "c~d", "e f", 'g"h'),
        **{"a/b": integer(), "c~d": integer(), "e f": integer(), 'g"h': integer()},
    ),
    record(("ключ",), ключ=text(maxLength=2)), {"properties": {"a": integer()}, "required": ["a"]},
    record(("tags",), tags=array({"enum": ["x", "y"]}, minItems=1, maxItems=3), note=text(maxLength=5)),
    record(("a",), a={"type": "object", "properties": {"b": array(POINT, maxItems=1)}, "required": ["b"]}),
    record(("kind",), kind={"const": "circle"}, radius=number(exclusiveMinimum=0, maximum=10)),
    {
        "title": "T", "description": "d", "$comment": "c", "examples": [1], "default": {}, "x-order": 1,
        **POINT,
    },
]  # fmt: skip

COMBINATIONS: list[Any] = [
    {"anyOf": [integer(), text(maxLength=3)]}, {"anyOf": [{"const": 1}, {"const": "a"}, {"type": "null"}]},
    {"anyOf": [record(("a",), a=integer()), record(("b",), b=text(maxLength=2))]},
    {"oneOf": [text(maxLength=2), integer()]},
    {"oneOf": [record(("t",), t={"const": "a"}), record(("t", "v"), t={"const": "b"}, v=integer())]},
    {"oneOf": [{"const": "x"}, {"const": "y"}]}, {"allOf": [integer(), {"minimum": 3}, {"maximum": 6}]},
    {"allOf": [POINT, {"required": ["y"]}]},
    {"allOf": [{"type": ["integer", "null"]}, {"type": ["null", "string"]}]},
    {
        "allOf": [
            {"properties": {"a": integer()}, "required": ["a"]},
            {"properties": {"b": integer()}, "required": ["b"]},
        ],
        "type": "object",
    },
    {"type": "object", "properties": {"a": {"anyOf": [integer(), {"type": "null"}]}}, "required": ["a"]},
    {"anyOf": [integer(), text(maxLength=2)], "enum": [1, "a", None]},
    {"anyOf": [{"minimum": 3}, {"maximum": 1}], **integer()},
    {"anyOf": [array(integer(), maxItems=1), record(("a",), a={"type": "null"})]},
    {"allOf": [{}, True, integer(maximum=5)]},
    {"oneOf": [{"type": "null"}, {"type": "boolean"}, array({"type": "null"}, maxItems=2)]},
    {"anyOf": [False, {"type": "boolean"}]},
    {"allOf": [{"anyOf": [integer(), text()]}, {"anyOf": [text(maxLength=2), {"type": "null"}]}]},
]  # fmt: skip

REFERENCES: list[Any] = [
    {"$ref": "#/$defs/n", "$defs": {"n": integer(maximum=5)}},
    {"$ref": "#/definitions/n", "definitions": {"n": {"type": "null"}}},
    record(("a", "b"), a={"$ref": "#/properties/b"}, b=integer(maximum=3)),
    {"$defs": {"p": POINT}, **array({"$ref": "#/$defs/p"}, minItems=1, maxItems=2)},
    {
        "$defs": {
            "t": record(
                ("v",), v=integer(maximum=9), left={"$ref": "#/$defs/t"}, right={"$ref": "#/$defs/t"},
            ),
        },
        "$ref": "#/$defs/t",
    },
    {
        "$defs": {"l": {"anyOf": [{"type": "null"}, record(("next",), next={"$ref": "#/$defs/l"})]}},
        "$ref": "#/$defs/l",
    },
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    record(children=array({"$ref": "#"}, maxItems=2), name=text(maxLength=2)),
    {
        "$defs": {"a/b": integer(maximum=2), "c~d": {"type": "null"}},
        "anyOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c~0d"}],
    },
    {"$defs": {"s": text(maxLength=4)}, "$ref": "#/$defs/s", "minLength": 2},
    {"$id": "https://example.com/s", "$ref": "#/$defs/x", "$defs": {"x": {"type": "boolean"}}},
    {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/c"}, "c": {"type": "boolean"}},
        "$ref": "#/$defs/a",
    },
    {
        "$defs": {"e": {"enum": ["a", "b"]}},
        **record(("one", "two"), one={"$ref": "#/$defs/e"}, two=array({"$ref": "#/$defs/e"}, maxItems=2)),
    },
    {
        "$defs": {
            "Address": record(("street", "zip"), street=text(maxLength=8), zip=text(pattern="^\\d{5}$")),
        },
        **record(
            ("name", "home"), name=text(maxLength=6), age=integer(minimum=0, maximum=130),
            home={"$ref": "#/$defs/Address"},
        ),
    },
]  # fmt: skip

ENFORCED = [True, {}, *SCALARS, *NUMBERS, *STRINGS, *ARRAYS, *OBJECTS, *COMBINATIONS, *REFERENCES]

REFUSED: list[tuple[Any, str]] = [
    (False, "false"), (array(uniqueItems=True), "uniqueItems"), ({"not": integer()}, "not"),
    ({"if": {}, "then": {}, "else": {}}, "if"), (array(contains=integer()), "contains"),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"dependentSchemas": {}}, "dependentSchemas"), ({"dependencies": {"a": ["b"]}}, "dependencies"),
    ({"propertyNames": text()}, "propertyNames"),
    ({"unevaluatedProperties": False}, "unevaluatedProperties"),
    (array(unevaluatedItems=False), "unevaluatedItems"), ({"$dynamicRef": "#a"}, r"\$dynamicRef"),
    ({"$anchor": "a"}, r"\$anchor"), ({"$ref": "https://example.com/s"}, r"\$ref"),
    ({"$ref": "#/$defs/missing"}, r"\$ref"), ({"$ref": "#a"}, r"\$ref"), ({"$ref": "#"}, r"\$ref"),
    ({"$ref": "#/enum/0", "enum": [{"minLenght": 3}]}, r"\$ref"),
    (text(minLenght=3), "minLenght.*did you mean 'minLength'"),
    (text(nullable=True), "nullable"), (text(format="regex"), "format"), (text(format="made-up"), "format"),
    (text(pattern="(?=a)b"), "pattern"), (text(pattern="(a)\\1"), "pattern"),
    (text(pattern="("), "pattern"), (text(pattern="\\bword\\b"), "pattern"),
    (text(pattern="a" * 5000), "pattern"), (text(minLength=3, maxLength=2), "minLength"),
    (text(minLength=5, pattern="^a{3}$"), "minLength"), (text(minLength=-1), "minLength"),
    (text(maxLength="3"), "maxLength"), (integer(minimum=5, maximum=3), "minimum"),
    (integer(minimum=2**60), "minimum"), ({"const": 2**53 + 1}, "const"),
    (number(multipleOf=0), "multipleOf"), (number(exclusiveMinimum=True, minimum=1), "exclusiveMinimum"),
    (number(minimum="1"), "minimum"), ({"enum": []}, "enum"), ({"enum": ["a\x01"]}, "enum"),
    ({"type": "text"}, "type"), ({"type": []}, "type"), ({"allOf": [text(), integer()]}, "allOf"),
    ({"oneOf": [integer(), number()]}, "oneOf"), ({"oneOf": [text(), text(minLength=2)]}, "oneOf"),
    ({"anyOf": []}, "anyOf"), ({"anyOf": {}}, "anyOf"), (array(5), "items"),
    (array(minItems=3, maxItems=1), "minItems"), (array(False, minItems=1), "items"),
    ({"type": "object", "minProperties": 2}, "minProperties"), ({"properties": []}, "properties"),
    (
        {
            "type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1, "minProperties": 1,
            "required": ["a"],
        },
        "maxProperties",
    ),
    ({"patternProperties": {"^a": {}, "^ab": {}}}, "patternProperties"), ({"required": "a"}, "required"),
    ({"additionalProperties": False, "required": ["a"], "type": "object"}, "required"),
    ({"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"),
    ({"properties": {"a": {"$id": "b"}}}, r"\$id"),
    ({"type": "object", "properties": {f"p{i}": {} for i in range(401)}}, "properties"),
    ({"allOf": [text(pattern=f"a{i}") for i in range(17)]}, "pattern"), ("[]", "object"), ("{", "JSON"),
]  # fmt: skip
