"""Request bodies that somebody might send: good ones of all routes, and what seeded chance makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from triolet.web.route_descriptions import ROUTES

__all__ = ["SEEDS", "mutated"]

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": _SCHEMA}}
_RICH: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("/v1/completions", {
        "prompt": ["a", "b"], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
        "seed": 7,
        "stop": ["x"], "logprobs": 2, "n": 2, "stop_token_ids": [3], "user": "u", "logit_bias": {"5": 1},
        "suffix": None, "frequency_penalty": 0.1, "presence_penalty": 0.1, "repetition_penalty": 1.1,
        "bad_words": ["q"], "allowed_token_ids": [65, 66], "min_tokens": 1, "ignore_eos": True, "priority": 0,
        "cache_salt": "s", "timeout": 5, "truncate_prompt_tokens": 5,
    }),
    ("/v1/completions", {
        "prompt": [72, 105], "max_tokens": 3, "echo": True, "logprobs": 1, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "return_progress": True,
    }),
    ("/v1/completions", {
        "prompt": "a", "max_tokens": 4, "n": 2, "use_beam_search": True, "length_penalty": 0.5,
    }),
    ("/v1/completions", {"prompt": "a", "max_tokens": 4, "structured_outputs": {"choice": ["b", "c"]}}),
    ("/v1/chat/completions", {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "t"}], "name": "n"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
        ],
        "max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2, "stream": True,
        "stream_options": {"include_usage": True}, "tools": [_TOOL], "tool_choice": "auto",
        "parallel_tool_calls": True, "chat_template_kwargs": {"x": 1},
    }),
    ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "t"}], "max_tokens": 3, "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA, "strict": True},
        },
    }),
    ("/v1/responses", {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "t"}]}], "max_output_tokens": 3,
        "instructions": "i", "stream": True, "store": True, "temperature": 0.5, "metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}],
        "text": {"format": {"type": "text"}},
    }),
    ("/v1/responses", {"input": "t", "background": True, "stream": True, "max_output_tokens": 3}),
    ("/v1/responses", {"input": "t", "background": True, "max_output_tokens": 3}),
    ("/v1/messages", {
        "model": "letters", "max_tokens": 3, "system": "s", "stream": True, "stop_sequences": ["x"],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "t"}]}], "temperature": 0.5,
        "tools": [{"name": "f", "input_schema": _SCHEMA}], "tool_choice": {"type": "auto"},
    }),
    ("/tokenize", {"messages": [{"role": "user", "content": "t"}], "add_special_tokens": False}),
)  # fmt: skip
SEEDS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((route.path, route.example) for route in ROUTES if route.is_served and route.example is not None),
    *_RICH,
)

_LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 1.5, -0.5, 1e308, 5e-324, 2**31, 2**53 + 1, 2**63, -(2**63), 2**70,
    10**400,
    float("nan"), float("inf"), "", " ", "a", "text", "user", "assistant", "function", "json_object", "none",
    "auto",
    "required", "all", "\0", "\n", "é", "🙂", "\ud800", "<|im_start|>", "x" * 300, "1" * 5000, "{{ 1/0 }}",
    "(a+)+$", [], {}, [[]], [None], [0], [""], [-1], [{}], {"": None}, {"a": {}}, {"type": "text"},
    {"type": []},
    {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#/x"}}}, {"5": 1e9}, {"type": "function"},
)  # fmt: skip
_BYTES = (
    b"",
    b"\0",
    b"\xff",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\u",
    b"\\ud800",
    b"1e999",
    b"NaN",
    b"\n",
)


def mutated(source: random.Random) -> tuple[str, bytes]:
    """A path and a body: a good one after some changes of values, and now and then of bytes."""
    path, good = source.choice(SEEDS)
    body: Any = json.loads(json.dumps(good))
    for _ in range(source.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        body = _changed(source, body)
    data = json.dumps(body).encode()
    if source.random() < 0.1:
        data = _broken(source, data)
    return path, data


def _changed(source: random.Random, body: Any) -> Any:
    """The body with another value, name or length somewhere."""
    holders = list(_holders(body))
    if not holders or source.random() < 0.02:
        return deepcopy(source.choice(_LEAVES))
    holder = source.choice(holders)
    keys: Sequence[Any] = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = source.choice(keys)
    value = holder[key]
    kind = source.randrange(8)
    if kind <= 2:
        holder[key] = deepcopy(source.choice(_LEAVES))
    elif kind == 3:
        del holder[key]
    elif kind == 4:
        holder[key] = [value] * source.choice((1, 2, 40)) if source.random() < 0.5 else {"a": value}
    elif kind == 5 and isinstance(holder, dict):
        holder[source.choice((f"{key}x", "nonsense", "", "type", "name", "content", "n"))] = value
    elif kind == 6:
        holder[key] = _nested(value, source.choice((3, 30, 150)))
    else:
        other = source.choice(holders)
        holder[key] = json.loads(json.dumps(other))
    return body


def _holders(value: Any) -> Iterator[Any]:
    """Every list and mapping in it that is not empty."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _holders(inner)


def _nested(value: Any, depth: int) -> Any:
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def _broken(source: random.Random, data: bytes) -> bytes:
    for _ in range(source.randint(1, 3)):
        start = source.randint(0, len(data))
        data = data[:start] + source.choice(_BYTES) + data[start + source.randint(0, 3) :]
    return data
