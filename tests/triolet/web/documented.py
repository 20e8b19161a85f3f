"""Holds answers to what ``/openapi.json`` says of them: all that is promised is there, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
from tests.triolet.web.serving import events_of

from triolet.web.openapi import openapi_document
from triolet.web.route_descriptions import ROUTES

__all__ = ["check_documented", "is_documented"]


def closed(node: Any) -> Any:
    """The schemas without leave to add what they do not name."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    parts = {name: closed(value) for name, value in node.items()}
    return {"additionalProperties": False} | parts if "properties" in parts else parts


DOCUMENT: dict[str, Any] = closed(openapi_document(ROUTES))


def check_documented(response: httpx.Response) -> Any:
    """The content of an answer, of a stream its events. Raises where it is not what the document says."""
    operation = _operation(response.request)
    assert operation is not None, f"{response.request.method} {response.request.url} is not documented"
    content = operation["responses"][str(response.status_code)]["content"]
    media_type = response.headers["Content-Type"].partition(";")[0]
    schema = content[media_type].get("schema", {})
    told: Any
    if media_type == "text/event-stream":
        told = events_of(response.text)
        schema = schema["properties"]["data"]["anyOf"][1]["contentSchema"] | {
            "components": DOCUMENT["components"]
        }
        assert told, "a stream has events"
        for event in told:
            if event != "[DONE]":
                jsonschema.validate(event, schema)
        return told
    schema |= {"components": DOCUMENT["components"]}
    told = response.json() if media_type == "application/json" else response.text
    jsonschema.validate(told, schema)
    return told


def is_documented(response: httpx.Response) -> bool:
    """Whether the document says anything of such an answer."""
    operation = _operation(response.request)
    return operation is not None and str(response.status_code) in operation["responses"]


def _operation(request: httpx.Request) -> dict[str, Any] | None:
    for path, methods in DOCUMENT["paths"].items():
        pattern = re.sub(r"\{name\}", ".+", path) if "/models/" in path else re.sub(r"\{\w+\}", "[^/]+", path)
        if re.fullmatch(pattern, request.url.path) and request.method.lower() in methods:
            operation: dict[str, Any] = methods[request.method.lower()]
            return operation
    return None
