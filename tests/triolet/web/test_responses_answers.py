"""What ``/v1/responses`` answers is what the document says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.documented import check_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.text.reasoning import REASONING_FORMATS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
REPLY = '<think>Hm.</think>Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def engine() -> FakeEngine:
    fake = FakeEngine(reply=REPLY)
    assert fake.chat_template is not None
    fake.chat_template.reasoning_format = REASONING_FORMATS[0]
    return fake


async def test_responses(anyio_backend_name: str) -> None:
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"max_output_tokens": 9, "metadata": {"a": "b"}, "temperature": 0.5, "instructions": "be brief"},
        {"tools": TOOLS, "tool_choice": "auto"},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {"reasoning": {"effort": "low"}, "stream": True},
    )
    async with serving(engine(), anyio_backend_name) as running:
        for body in bodies:
            answer = await running.client.post(PATH, json={"input": "hi"} | body)
            assert answer.status_code == 200, answer.text
            check_documented(answer)


async def test_what_is_kept_of_them(anyio_backend_name: str) -> None:
    async with serving(engine(), anyio_backend_name) as running:
        first = check_documented(await running.client.post(PATH, json={"input": "hi", "tools": TOOLS}))
        called = first["output"][-1]
        output = {"type": "function_call_output", "call_id": called["call_id"], "output": "2"}
        again = {"input": [output], "previous_response_id": first["id"]}
        second = check_documented(await running.client.post(PATH, json=again))
        check_documented(await running.client.get(f"{PATH}/{second['id']}"))
        items = check_documented(await running.client.get(f"{PATH}/{second['id']}/input_items"))
        assert {item["type"] for item in items["data"]} == {
            "message", "reasoning", "function_call", "function_call_output",
        }  # fmt: skip
        check_documented(await running.client.post(f"{PATH}/{second['id']}/cancel"))
        check_documented(await running.client.delete(f"{PATH}/{second['id']}"))
        assert "error" in check_documented(await running.client.get(f"{PATH}/{second['id']}"))
