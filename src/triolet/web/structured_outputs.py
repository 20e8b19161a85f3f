"""``response_format`` and ``structured_outputs`` of a body: what the output must be.

``response_format`` is OpenAI's field; ``structured_outputs`` is vLLM's, and has every kind. What cannot be
compiled is found later, by the engine, which knows the second name only: :func:`blaming_response_format` puts
its errors in terms of what was sent. This module knows nothing of grammars or of HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from triolet.errors import InvalidRequestError
from triolet.sampling_params import StructuredOutputs

__all__ = ["blaming_response_format", "renamed", "structured_outputs_of"]

_NAME = re.compile(r"\bstructured_outputs\b(?:\.\w+)?")

NEUTRAL: Mapping[str, Any] = {
    "disable_additional_properties": False, "disable_any_whitespace": False, "disable_fallback": True,
    "whitespace_pattern": None,
}  # fmt: skip
"""Other members of vLLM's ``structured_outputs``, with what is done here."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "json": (str, dict, bool), "json_object": (bool,), "regex": (str,), "choice": (list,), "grammar": (str,),
    "structural_tag": (str, dict),
}  # fmt: skip
TYPE_NAMES: Mapping[type, str] = {str: "a string", dict: "an object", bool: "true or false", list: "a list"}


def structured_outputs_of(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> StructuredOutputs | None:
    """What the two fields ask for; None if that is nothing. Raises InvalidRequestError naming the field."""
    spec = None if response_format is None else _of_response_format(response_format)
    if structured_outputs is None:
        return spec
    if spec is not None:
        raise InvalidRequestError(
            "structured_outputs: not allowed together with response_format; send one of them",
            param="structured_outputs",
        )
    return _of_structured_outputs(structured_outputs)


@contextmanager
def blaming_response_format(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> Iterator[None]:
    """Errors of the engine about ``structured_outputs`` name ``response_format``, if only that was sent."""
    try:
        yield
    except InvalidRequestError as error:
        if response_format is None or structured_outputs:
            raise
        name = "response_format"
        if response_format.get("type") == "json_schema":
            name += ".json_schema.schema"
        raise renamed(error, name) from error.__cause__


def renamed(error: InvalidRequestError, name: str) -> InvalidRequestError:
    """The same error, with ``name`` in place of ``structured_outputs`` and its members."""
    message = _NAME.sub(name, error.message)
    if message == error.message:
        return error
    return type(error)(message, param=None if error.param is None else _NAME.sub(name, error.param))


def _of_response_format(response_format: Mapping[str, Any]) -> StructuredOutputs | None:
    match response_format.get("type"):
        case "text":
            _check_members("response_format", response_format, {"type"})
            return None
        case "json_object":
            _check_members("response_format", response_format, {"type"})
            return StructuredOutputs(json_object=True)
        case "json_schema":
            _check_members("response_format", response_format, {"type", "json_schema"})
            return StructuredOutputs(json=_schema_of(response_format.get("json_schema")))
        case "structural_tag":
            return StructuredOutputs(structural_tag=response_format)
        case other:
            raise InvalidRequestError(
                "response_format.type: must be one of text, json_object, json_schema, structural_tag, "
                f"got {other!r:.60}",
                param="response_format.type",
            )


def _schema_of(holder: Any) -> dict[str, Any] | bool:
    """The schema in OpenAI's wrapping, whose ``strict`` may be anything: schemas are always enforced."""
    where = "response_format.json_schema"
    if not isinstance(holder, Mapping):
        raise InvalidRequestError(f"{where}: must be an object with 'name' and 'schema'", param=where)
    _check_members(where, holder, {"name", "description", "schema", "strict"})
    if not isinstance(holder.get("name"), str):
        raise InvalidRequestError(f"{where}.name: missing, or not a string", param=f"{where}.name")
    schema = holder.get("schema")
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(f"{where}.schema: missing, or not a JSON schema", param=f"{where}.schema")
    return schema


def _of_structured_outputs(members: Mapping[str, Any]) -> StructuredOutputs:
    _check_members("structured_outputs", members, KINDS.keys() | NEUTRAL.keys())
    chosen: dict[str, Any] = {}
    for name, value in members.items():
        param = f"structured_outputs.{name}"
        if name in NEUTRAL:
            if value is not None and value != NEUTRAL[name]:
                raise InvalidRequestError(f"{param}: this server does not support it; remove it", param=param)
        elif value is not None:
            if not isinstance(value, KINDS[name]):
                wanted = ", or ".join(TYPE_NAMES[kind] for kind in KINDS[name])
                raise InvalidRequestError(f"{param}: must be {wanted}, got {value!r:.60}", param=param)
            chosen[name] = value
    return StructuredOutputs(**chosen)


def _check_members(where: str, members: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(name for name in members if name not in known and members[name] is not None)
    if unknown:
        param = f"{where}.{unknown[0]}"
        raise InvalidRequestError(f"{param}: unknown field; remove it", param=param)
