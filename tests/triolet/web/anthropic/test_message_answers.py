"""What the routes of the Messages API answer is what the document says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.documented import check_documented
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.text.reasoning import REASONING_FORMATS

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]
BODY = {"max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
REPLY = '<think>Hm.</think>Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


async def test_messages(anyio_backend_name: str) -> None:
    engine = FakeEngine(reply=REPLY)
    assert engine.chat_template is not None
    engine.chat_template.reasoning_format = REASONING_FORMATS[0]
    bodies: tuple[dict[str, Any], ...] = (
        {}, {"tools": TOOLS}, {"max_tokens": 3}, {"max_tokens": 0}, {"stream": True},
    )  # fmt: skip
    async with serving(engine, anyio_backend_name) as running:
        for body in bodies:
            answer = await running.client.post("/v1/messages", json=BODY | body)
            assert answer.status_code == (400 if body.get("max_tokens") == 0 else 200)
            check_documented(answer)
        check_documented(await running.client.post("/v1/messages/count_tokens", json=BODY))
