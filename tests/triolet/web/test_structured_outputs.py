from __future__ import annotations

from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs
from triolet.web.structured_outputs import blaming_response_format, structured_outputs_of

SCHEMA = {"type": "object"}
WRAPPED = {"name": "thing", "schema": SCHEMA}
TAG = {"type": "structural_tag", "triggers": ["<f>"], "structures": []}


@pytest.mark.parametrize(
    ("response_format", "structured_outputs", "spec"),
    [
        (None, None, None),
        ({"type": "text"}, None, None),
        ({"type": "json_object"}, None, {"json_object": True}),
        ({"type": "json_schema", "json_schema": WRAPPED | {"strict": True}}, None, {"json": SCHEMA}),
        ({"type": "json_schema", "json_schema": WRAPPED | {"strict": None}}, None, {"json": SCHEMA}),
        (TAG, None, {"structural_tag": TAG}),
        (None, {"json": SCHEMA}, {"json": SCHEMA}),
        (None, {"json": '{"type": "null"}', "regex": None}, {"json": '{"type": "null"}'}),
        ({"type": "text"}, {"regex": "a"}, {"regex": "a"}),
        (None, {"choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        (None, {"grammar": "start: x", "disable_fallback": True}, {"grammar": "start: x"}),
        (None, {"json_object": True, "disable_any_whitespace": False}, {"json_object": True}),
    ],
)
def test_what_is_asked_for(
    response_format: Any, structured_outputs: Any, spec: dict[str, Any] | None
) -> None:
    wanted = None if spec is None else StructuredOutputs(**spec)
    assert structured_outputs_of(response_format, structured_outputs) == wanted


@pytest.mark.parametrize(
    ("response_format", "structured_outputs", "param"),
    [
        ({}, None, "response_format.type"),
        ({"type": "xml"}, None, "response_format.type"),
        ({"type": "text", "x": 1}, None, "response_format.x"),
        ({"type": "json_object", "schema": {}}, None, "response_format.schema"),
        ({"type": "json_schema"}, None, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, None, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, None, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": WRAPPED | {"x": 1}}, None, "response_format.json_schema.x"),
        ({"type": "json_object"}, {"regex": "a"}, "structured_outputs"),
        (None, {}, "structured_outputs"),
        (None, {"regex": None}, "structured_outputs"),
        (None, {"regex": "a", "grammar": "b"}, "structured_outputs"),
        (None, {"regexp": "a"}, "structured_outputs.regexp"),
        (None, {"regex": 5}, "structured_outputs.regex"),
        (None, {"choice": "a"}, "structured_outputs.choice"),
        (None, {"choice": [5]}, "structured_outputs.choice"),
        (None, {"json": 5}, "structured_outputs.json"),
        (None, {"json": SCHEMA, "whitespace_pattern": " *"}, "structured_outputs.whitespace_pattern"),
    ],
)
def test_what_is_wrong_is_named(response_format: Any, structured_outputs: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        structured_outputs_of(response_format, structured_outputs)
    assert caught.value.param == param
    assert caught.value.message.startswith(param + ":")


def test_a_wrong_type_is_told_the_right_one() -> None:
    with pytest.raises(InvalidRequestError, match=r"regex: must be a string, got 5"):
        structured_outputs_of(None, {"regex": 5})
    with pytest.raises(InvalidRequestError, match=r"json: must be a string, or an object, or true or false"):
        structured_outputs_of(None, {"json": 5})


@pytest.mark.parametrize(
    ("response_format", "param", "blamed"),
    [
        ({"type": "json_schema"}, "structured_outputs.json", "response_format.json_schema.schema"),
        ({"type": "structural_tag"}, "structured_outputs.structural_tag", "response_format"),
        (None, "structured_outputs.json", "structured_outputs.json"),
        ({"type": "json_schema"}, "max_tokens", "max_tokens"),
    ],
)
def test_the_engine_blames_what_was_sent(response_format: Any, param: str, blamed: str) -> None:
    with pytest.raises(InvalidRequestError) as caught, blaming_response_format(response_format, None):
        raise InvalidRequestError(f"{param}: at #: wrong", param=param)
    assert (caught.value.param, caught.value.message) == (blamed, f"{blamed}: at #: wrong")


def test_a_field_that_is_named_beside_another_is_the_one_that_was_sent() -> None:
    message = "bad_words: no token is left: bad_words and structured_outputs forbid every one"
    with pytest.raises(InvalidRequestError) as caught, blaming_response_format({"type": "json_object"}, None):
        raise InvalidRequestError(message, param="bad_words")
    assert caught.value.message == message.replace("structured_outputs", "response_format")
    assert caught.value.param == "bad_words"


def test_where_both_were_sent_each_keeps_its_name() -> None:
    both: Any = {"type": "json_object"}, {"regex": "a"}
    with pytest.raises(InvalidRequestError) as caught, blaming_response_format(*both):
        structured_outputs_of(*both)
    assert caught.value.param == "structured_outputs"
    assert "not allowed together with response_format" in caught.value.message
