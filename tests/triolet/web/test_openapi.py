"""The OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from triolet.errors import InvalidRequestError
from triolet.web.anthropic.errors import message_error_body
from triolet.web.openapi import openapi_document
from triolet.web.route_descriptions import ROUTES

DOCUMENT = openapi_document(ROUTES, prefix="/llm")
OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def schema_of(reference: dict[str, Any]) -> dict[str, Any]:
    return reference | {"components": DOCUMENT["components"]}


def test_it_says_what_it_is() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["servers"] == [{"url": "/llm"}]
    assert openapi_document(ROUTES)["servers"] == [{"url": "/"}]
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(ids)) == len(ids) == len(ROUTES)


def test_every_reference_leads_to_a_valid_schema() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)

    def references(node: Any) -> Any:
        if isinstance(node, dict):
            yield from [node["$ref"]] if "$ref" in node else ()
            node = list(node.values())
        if isinstance(node, list):
            for item in node:
                yield from references(item)

    for reference in references(DOCUMENT):
        assert reference.removeprefix("#/components/schemas/") in DOCUMENT["components"]["schemas"]


def test_the_examples_are_valid_and_wrong_bodies_are_not() -> None:
    for _, _, operation in OPERATIONS:
        body = operation.get("requestBody")
        if body is not None:
            content = body["content"]["application/json"]
            jsonschema.validate(content["example"], schema_of(content["schema"]))
    chat = schema_of({"$ref": "#/components/schemas/ChatBody"})
    wrongs: list[Any] = [{}, {"messages": []}, {"messages": "hello"}, {"messages": [{"content": "x"}]}]
    for wrong in wrongs:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, chat)


def test_every_success_has_a_schema() -> None:
    for route in ROUTES:
        content = DOCUMENT["paths"][route.path][route.method]["responses"].get("200", {}).get("content", {})
        assert bool(content) == route.is_served
        if route.answer_type == "application/json" and route.is_served:
            schema = content["application/json"]["schema"]
            assert "$ref" in schema or route.path == "/openapi.json", route.path


def test_errors_have_their_shape_and_control_needs_the_key() -> None:
    for path, _, operation in OPERATIONS:
        refused = operation["responses"]["400"]["content"]["application/json"]
        error: dict[str, Any] = {"error": {"message": "m", "type": "t", "param": None, "code": None}}
        if path.startswith("/v1/messages"):
            error = message_error_body(InvalidRequestError("m"), "req-1")
        jsonschema.validate(error, schema_of(refused["schema"]))
        assert ("security" in operation) == (operation["tags"] == ["control"]), path
    assert "200" not in DOCUMENT["paths"]["/v1/embeddings"]["post"]["responses"]
    chat = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]
    assert chat.keys() == {"application/json", "text/event-stream"}
