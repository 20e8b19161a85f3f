"""Mutated chats with tools, and answers that are hardly calls: nothing of it is a server error."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine, FakeStream, Params
from tests.triolet.web.serving import events_of, serving

from triolet.sampling_params import SamplingParams
from triolet.text.chat_template import ChatTemplate
from triolet.text.grammar import write_grammar
from triolet.text.tool_parsers.formats import TOOL_FORMATS

pytestmark = pytest.mark.anyio
NUM_BODIES = 200
PATH = "/v1/chat/completions"
SCHEMA: dict[str, Any] = {
    "type": "object", "$defs": {"c": {"enum": ["Oslo", None]}},
    "properties": {"city": {"type": ["string", "null"]}, "c": {"$ref": "#/$defs/c"}}, "required": ["city"],
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop", "strict": True}},
]
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "\\ud800"}'}}
GOOD: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "Hm."},
        {"role": "tool", "tool_call_id": "1", "content": "dry"},
    ],
    "tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True, "n": 1, "max_tokens": 400,
    "stream": False, "chat_template_kwargs": {"x": 1}, "reasoning_effort": "low",
}  # fmt: skip
FIELDS: list[tuple[str, Any]] = [
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "weather"}}),
    ("tool_choice", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": TOOLS}}),
    ("parallel_tool_calls", False),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
    ("response_format", {"type": "json_object"}),
    ("structured_outputs", {"json": json.dumps(SCHEMA)}),
    ("structured_outputs", {"json": '{"enum": ["\\ud800"]}'}),
    ("structured_outputs", {"regex": "a+"}),
    ("chat_template_kwargs", {"options": 1, "self": 2, "request_id": "r", "params": None}),
    ("stream", True),
    ("logprobs", True),
    ("include_reasoning", False),
    ("continue_final_message", True),
]
VALUES: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, float("nan"), "", "x", "null", "\ud800", '"\\ud800"', "{", "[" * 2000,
    [], {}, [None], {"": {}}, {"type": "string"}, {"$ref": "#"}, {"type": ["string", 5]}, "weather",
    "structured_outputs",
    {"properties": {"a": {"pattern": "("}}}, {"anyOf": []}, "é" * 300,
]  # fmt: skip
PIECES = [
    *(marker for form in TOOL_FORMATS for marker in form.markers), '{"name": "weather", "arguments": ',
    '{"city": "\\ud800"}', '"{\\"city\\": \\"\\ud800\\"}"', "call:weather{", 'city:"\\udfff"', "}", "]", "[",
    "<function=weather>", "<parameter=city>", '"\\ud800"', "</parameter>", "</function>", "stop", "(", ")",
    ", ",
    "[weather(city='\\ud800')]", "weather", "1e999", "9" * 5000, "\n", " ", "é", '"', "\\", ":",
]  # fmt: skip


class RenderingEngine(FakeEngine):
    """Renders the chat and writes its grammar as the real one does, before it makes up the answer."""

    async def submit_chat(
        self, messages: Sequence[Mapping[str, Any]], params: Params, **given: Any
    ) -> FakeStream:
        rendering = {key: value for key, value in given.items() if key not in ("request_id", "options")}
        assert self.chat_template is not None
        self.chat_template.render(messages, **rendering).encode()
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            write_grammar(params.structured_outputs)
        return await super().submit_chat(messages, params, **given)


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value, with a key of it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((value, key), *places_in(inner))]


def changed(source: random.Random) -> dict[str, Any]:
    body = copy.deepcopy(GOOD)
    for name, value in source.sample(FIELDS, source.randint(0, 3)):
        body[name] = copy.deepcopy(value)
    for _ in range(source.randint(0, 2)):
        container, key = source.choice(places_in(body))
        choice = source.random()
        if choice < 0.2:
            del container[key]
        elif choice < 0.3 and isinstance(container, dict):
            container[source.choice(["nonsense", "if", "self", "messages"])] = container[key]
        else:
            container[key] = copy.deepcopy(source.choice(VALUES))
    return body


async def check_body(client: Any, body: dict[str, Any]) -> int:
    """Send it; → its status."""
    answer = await client.post(PATH, content=json.dumps(body).encode())
    status: int = answer.status_code
    assert status in (200, 400), (body, answer.text)
    if status == 400:
        assert answer.json()["error"]["message"], body
    elif body.get("stream"):
        events = events_of(answer.text)
        assert events[-1] == "[DONE]"
        assert not any("error" in event for event in events[:-1]), (body, answer.text)
    else:
        assert answer.json()["choices"], body
    return status


@pytest.mark.slow
async def test_no_chat_with_tools_is_a_server_error(anyio_backend_name: str) -> None:
    source = random.Random(14)
    statuses: Counter[int] = Counter()
    engine = RenderingEngine()
    async with serving(engine, anyio_backend_name) as running:
        for _ in range(NUM_BODIES):
            form = source.choice(TOOL_FORMATS)
            template: Any = ChatTemplate("{{ messages }}{{ x }}{{ tools }}", tool_format=form)
            engine.chat_template = template
            engine.reply = "".join(source.choices(PIECES, k=source.randint(0, 12)))
            engine.tokens_per_output = source.choice((1, 5, 1000))
            statuses[await check_body(running.client, changed(source))] += 1
    assert engine.num_open == 0
    assert min(statuses[200], statuses[400]) > NUM_BODIES // 8, statuses
