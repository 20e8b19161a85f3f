"""The OpenAPI document of the routes, made from their descriptions and the types of their bodies.

Pure; knows nothing of the framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

import triolet
from triolet.web.route_descriptions import Parameter, Route
from triolet.web.stated_rules import with_rules

__all__ = ["Error", "ErrorObject", "MessageError", "MessageErrorObject", "openapi_document"]

SchemaOf = Mapping[Any, Mapping[str, Any]]

_REFERENCE = "#/components/schemas/{name}"
_ERRORS = {
    "400": "A field, a parameter or a header is wrong; `param` names it.",
    "401": "The API key is missing or wrong.",
    "403": "The API key does not open this route.",
    "404": "The model, or the route, does not exist.",
    "408": "The body did not arrive in time.",
    "409": "It cannot be done as things stand.",
    "413": "The body is too large.",
    "429": "The queue is full, or a key is at its limit; Retry-After says when to come again.",
    "500": "The request failed.",
    "501": "No model here can do it.",
    "503": "The engine is loading, leaving or dead.",
}


class ErrorObject(Struct):
    """What went wrong. ``param`` is the field, parameter or header that is to blame."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    """The body of every answer that is not a success, but for those of the Messages API."""

    error: ErrorObject


class MessageErrorObject(Struct):
    """What went wrong."""

    type: str
    message: str


class MessageError(Struct):
    """The body of an answer of the Messages API that is not a success, and the event of a stream that fails.

    An event leaves ``request_id`` to the header.
    """

    type: Literal["error"]
    error: MessageErrorObject
    request_id: str | UnsetType = UNSET


def openapi_document(routes: Iterable[Route], *, prefix: str = "") -> dict[str, Any]:
    """OpenAPI 3.1. ``prefix`` is the path under which the routes are."""
    routes = list(routes)
    kinds = list(dict.fromkeys([*(kind for route in routes for kind in _kinds(route)), Error, MessageError]))
    references, schemas = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schemas = {name: with_rules(name, schema) for name, schema in schemas.items()}
    schema_of = dict(zip(kinds, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "triolet",
            "version": triolet.__version__,
            "description": "An LLM inference server with the OpenAI API.",
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{"key": []}, {"header": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def _kinds(route: Route) -> Iterator[Any]:
    """The types of all that is sent over a route, but for errors."""
    kinds = (route.body, route.answer if route.is_served else None, route.event, route.unavailable)
    return (kind for kind in kinds if kind is not None)


def _operation(route: Route, schema_of: SchemaOf) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.method + route.path.translate(str.maketrans("/.{}", "____")),
        "tags": [route.tag],
        "responses": _responses(route, schema_of),
    }
    if route.tag == "control":
        operation["security"] = [{"key": []}, {"header": []}]
    if route.parameters:
        operation["parameters"] = [_parameter(parameter) for parameter in route.parameters]
    if route.body is not None:
        content = {"schema": schema_of[route.body], "example": route.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "schema": dict(parameter.schema),
    }


def _responses(route: Route, schema_of: SchemaOf) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    error = MessageError if route.path.startswith("/v1/messages") else Error
    if route.is_served:
        content = {route.answer_type: {"schema": schema_of[route.answer]}}
        if route.event is not None:
            told = {"anyOf": [schema_of[route.event], schema_of[error]]}
            content["text/event-stream"] = {"schema": _event_schema(told)}
        responses["200"] = {"description": "Done.", "content": content}
    for status, description in _ERRORS.items():
        kind = route.unavailable if status == "503" and route.unavailable is not None else error
        responses[status] = {
            "description": description,
            "content": {"application/json": {"schema": schema_of[kind]}},
        }
    return responses


def _event_schema(data: Mapping[str, Any]) -> dict[str, Any]:
    """One event of a stream: its data is JSON, but for the ``[DONE]`` with which OpenAI's streams end."""
    told = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": {"anyOf": [{"const": "[DONE]"}, told]}},
        "required": ["data"],
    }
