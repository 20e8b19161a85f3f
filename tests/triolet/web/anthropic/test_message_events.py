"""The events of a streamed message are what the document says, also where it fails."""

from __future__ import annotations

from typing import Any, get_args

import anyio
import pytest
from tests.triolet.web.documented import check_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.errors import EngineGenerateError
from triolet.text.reasoning import REASONING_FORMATS
from triolet.web.anthropic.message_events import MessageEvent

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
BODY: dict[str, Any] = {
    "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}], "stream": True,
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
}  # fmt: skip
REPLY = '<think>Hm.</think>Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


async def test_all_kinds_of_events(anyio_backend_name: str) -> None:
    engine = FakeEngine(reply=REPLY)
    assert engine.chat_template is not None
    engine.chat_template.reasoning_format = REASONING_FORMATS[0]
    async with serving(engine, anyio_backend_name) as running:
        events = check_documented(await running.client.post("/v1/messages", json=BODY))
        cut = check_documented(await running.client.post("/v1/messages", json=BODY | {"max_tokens": 3}))
    kinds = {kind.__struct_config__.tag for kind in get_args(MessageEvent)}
    assert {event["type"] for event in events} == kinds
    assert {event["delta"]["type"] for event in events if event["type"] == "content_block_delta"} == {
        "text_delta", "thinking_delta", "signature_delta", "input_json_delta",
    }  # fmt: skip
    assert cut[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_a_stream_that_fails(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=3)
    async with serving(engine, anyio_backend_name) as running, anyio.create_task_group() as group:

        async def ask() -> None:
            events = check_documented(await running.client.post("/v1/messages", json=BODY))
            assert events[-1]["type"] == "error"

        group.start_soon(ask)
        await engine.wait_held()
        engine.fail_all(EngineGenerateError("no"))
