"""The official client calls tools of the default model on a live server, on both event loops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import openai
import pytest
from tests.triolet.web.serving import serving

from triolet import Engine

pytestmark = [pytest.mark.anyio, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]
ASK: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[str, str | None]:
    """Arguments of the only call of a stream, and its finish reason."""
    arguments, reason = "", None
    for chunk in client.chat.completions.create(model="smollm2", stream=True, **fields):
        (choice,) = chunk.choices
        reason = choice.finish_reason or reason
        arguments += "".join(news.function.arguments for news in choice.delta.tool_calls or ())
    return arguments, reason


def converse(client: openai.OpenAI) -> None:
    """A call that is required, the same streamed and by name, and an answer to its result."""
    create = client.chat.completions.create
    fields: Any = {
        "messages": ASK, "tools": TOOLS, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 60,
    }  # fmt: skip
    first = create(model="smollm2", tool_choice="required", **fields).choices[0]
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    assert streamed(client, tool_choice=NAMED, **fields) == (call.function.arguments, "tool_calls")
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is snowing in Oslo."}
    fields |= {"messages": [*ASK, first.message, result], "max_tokens": 8}
    last = create(model="smollm2", **fields).choices[0]
    assert last.message.content or last.message.tool_calls


async def test_a_conversation_with_tools(anyio_backend_name: str, smollm2_path: Path) -> None:
    engine = Engine(model=str(smollm2_path), served_model_name="smollm2", max_model_len=1024, seed=1)
    async with serving(engine, anyio_backend_name, is_ready=False) as running:
        await running.until_answering(is_ready=True)

        def call() -> None:
            url = f"http://127.0.0.1:{running.port}/v1"
            with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
                converse(client)

        await anyio.to_thread.run_sync(call)
