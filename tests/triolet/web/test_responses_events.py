"""The events of a streamed response are what the document says, however it ends."""

from __future__ import annotations

from typing import Any, get_args

import anyio
import pytest
from tests.triolet.web.documented import check_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.errors import EngineGenerateError
from triolet.text.reasoning import REASONING_FORMATS
from triolet.web.responses_events import ResponseEvent

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
PATH = "/v1/responses"
BODY: dict[str, Any] = {
    "input": "hi", "stream": True, "include": ["message.output_text.logprobs"],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
}  # fmt: skip
REPLY = '<think>Hm.</think>Well.\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


async def test_all_kinds_of_events(anyio_backend_name: str) -> None:
    engine = FakeEngine(reply=REPLY)
    assert engine.chat_template is not None
    engine.chat_template.reasoning_format = REASONING_FORMATS[0]
    streams: list[list[Any]] = []
    async with serving(engine, anyio_backend_name) as running, anyio.create_task_group() as group:

        async def ask(body: dict[str, Any]) -> None:
            streams.append(check_documented(await running.client.post(PATH, json=body)))

        await ask(BODY)
        await ask(BODY | {"max_output_tokens": 9, "background": True})
        engine.release(3)
        group.start_soon(ask, BODY)
        await engine.wait_held()
        engine.fail_all(EngineGenerateError("no"))
    endings = [stream[-1]["type"] for stream in streams]
    assert endings == ["response.completed", "response.incomplete", "response.failed"]
    for stream in streams:
        assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    kinds = {kind.__struct_config__.tag for kind in get_args(ResponseEvent)}
    assert {event["type"] for stream in streams for event in stream} == kinds
