"""What is said of values is what is checked: at the limit they are taken, beyond it they are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from triolet.errors import InvalidRequestError
from triolet.web.openapi import openapi_document
from triolet.web.responses_schema import ResponsesBody
from triolet.web.route_descriptions import ROUTES
from triolet.web.schema import ChatBody, CompletionBody, decode_body

SCHEMAS = openapi_document(ROUTES)["components"]["schemas"]
BODIES: dict[type[Any], dict[str, Any]] = {
    ChatBody: {"messages": [{"role": "user", "content": "hi"}], "logprobs": True},
    CompletionBody: {"prompt": "hi", "echo": True},
    ResponsesBody: {"input": "hi", "include": ["message.output_text.logprobs"]},
}
LIMITS: dict[str, Any] = {
    "minimum": (0, -1), "maximum": (0, 1), "exclusiveMinimum": (1e-9, 0), "minItems": (None, []),
    "minLength": (None, ""),
}  # fmt: skip
"""What to add to a limit for a value that is taken and for one that is not; of lengths, what is not."""
ELSEWHERE = {
    ("min_tokens", 2**31 - 1),
    ("truncate_prompt_tokens", 0),
    ("max_tokens", 0),
    ("max_completion_tokens", 0),
}
"""Within the limits, and refused all the same in some bodies."""


def stated_values() -> Iterator[tuple[type[Any], str, Any, bool]]:
    """A body, a field, a value, and whether it is within what is said."""
    for kind in BODIES:
        for name, schema in SCHEMAS[kind.__name__]["properties"].items():
            for option in schema.get("anyOf", [schema]):
                for keyword in [keyword for keyword in LIMITS if keyword in option]:
                    inside, outside = LIMITS[keyword]
                    if inside is None:
                        yield kind, name, outside, False
                    elif isinstance(limit := option[keyword], int | float):
                        yield kind, name, limit + inside, True
                        yield kind, name, limit + outside, False


def decode(kind: type[Any], name: str, value: Any) -> None:
    body = decode_body(json.dumps(BODIES[kind] | {name: value}).encode(), kind)
    if isinstance(body, ResponsesBody):
        body = body.as_chat()
    with body.blaming_its_own_fields():
        body.params()
        body.options("me")


def test_most_sampling_fields_have_limits() -> None:
    names = {name for _, name, _, _ in stated_values()}
    assert {"temperature", "top_p", "n", "seed", "timeout", "stop", "allowed_token_ids"} <= names
    assert len(names) > 20


@pytest.mark.parametrize(("kind", "name", "value", "is_within"), list(stated_values()))
def test_what_is_said_is_what_is_checked(kind: type[Any], name: str, value: Any, is_within: bool) -> None:
    if is_within and (name, value) not in ELSEWHERE:
        decode(kind, name, value)
    elif not is_within:
        with pytest.raises(InvalidRequestError):
            decode(kind, name, value)
