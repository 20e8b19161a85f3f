"""``/v1/messages`` over a real socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.triolet.web.fake_engine import REPLY, FakeEngine
from tests.triolet.web.serving import Running, serving

from triolet.errors import EngineGenerateError, OverloadedError

pytestmark = pytest.mark.anyio
HELLO = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}}


def named_events(text: str) -> list[dict[str, Any]]:
    """The data of events, each of which has its type as its name."""
    events = []
    for block in text.split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def ask(running: Running, **fields: Any) -> dict[str, Any]:
    body = {"messages": HELLO, "max_tokens": 100} | fields
    answer: dict[str, Any] = (await running.client.post("/v1/messages", json=body)).json()
    return answer


async def test_a_message_has_the_shape_of_the_api(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await ask(running, model="alias", system="be brief")
    assert answer.pop("id").startswith("msg")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "alias",
        "content": [{"type": "text", "text": REPLY}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
            "output_tokens": len(REPLY.encode()),
        },
    }  # fmt: skip


async def test_what_is_asked_reaches_the_engine(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        await ask(
            running, system="be brief", temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["x"],
            metadata={"user_id": "ann"}, service_tier="auto", cache_control={"type": "ephemeral"},
        )  # fmt: skip
    ((messages, params, options),) = running.engine.submitted
    assert messages == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (100, 0.5, 0.9, 5)
    assert params.stop == ("x",)
    assert options["options"].fairness_key == "ann"
    assert options["add_generation_prompt"] is True


async def test_a_stream_has_its_events_in_order(anyio_backend_name: str) -> None:
    body = {"messages": HELLO, "max_tokens": 100, "stream": True}
    async with serving(FakeEngine(reply="xyz"), anyio_backend_name) as running:
        response = await running.client.post("/v1/messages", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = named_events(response.text)
    assert [event["type"] for event in events] == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * 3, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    message = events[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["input_tokens"] == 2
    assert message["id"] == response.headers["request-id"]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 3


async def test_a_stream_that_waits_tells_its_prompt_and_pings(anyio_backend_name: str) -> None:
    body = {"messages": HELLO, "max_tokens": 100, "stream": True}
    engine = FakeEngine(reply="xyz", hold_at=0)
    async with (
        serving(engine, anyio_backend_name, ping_interval=0.01) as running,
        running.client.stream("POST", "/v1/messages", json=body) as response,
    ):
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if text.count(": ping") == 2:
                engine.release()
    events = named_events(text)
    assert events[0]["message"]["usage"]["input_tokens"] == 2
    assert events[-1]["type"] == "message_stop"


async def test_calls_are_blocks(anyio_backend_name: str) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}, {"type": "auto"}):
        async with serving(FakeEngine(reply=f"Let me see. {CALL}"), anyio_backend_name) as running:
            answer = await ask(running, tools=[ADD], tool_choice=choice, max_tokens=1000)
        words, call = answer["content"]
        assert words == {"type": "text", "text": "Let me see."}
        assert call.pop("id").startswith("call_")
        assert call == {"type": "tool_use", "name": "add", "input": {"a": 1}}
        assert answer["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("fields", "status", "kind", "words"),
    [
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens: "),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens: "),
        ({"model": "other"}, 404, "not_found_error", "does not exist"),
        ({"stop_sequence": ["x"]}, 400, "invalid_request_error", "did you mean stop_sequences?"),
        ({"stop_sequences": [""]}, 400, "invalid_request_error", "stop_sequences: "),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}]},
            400,
            "invalid_request_error",
            "tools[0].type",
        ),
        ({"tools": [ADD, ADD]}, 400, "invalid_request_error", "tools[1].name: 'add' is there twice"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice: "),
        ({"mcp_servers": [{}]}, 400, "invalid_request_error", "mcp_servers: "),
    ],
)
async def test_errors_have_the_shape_of_the_api(
    fields: dict[str, Any], status: int, kind: str, words: str, anyio_backend_name: str
) -> None:
    body = {"messages": HELLO, "max_tokens": 100} | fields
    async with serving(FakeEngine(), anyio_backend_name) as running:
        response = await running.client.post("/v1/messages", json=body)
    error = response.json()
    assert (response.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert words in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"]


async def test_a_full_queue_says_when_to_come_again(anyio_backend_name: str) -> None:
    engine = FakeEngine()
    engine.refusal = OverloadedError("full", retry_after=7)
    async with serving(engine, anyio_backend_name) as running:
        response = await running.client.post("/v1/messages", json={"messages": HELLO, "max_tokens": 1})
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert response.json()["error"]["type"] == "rate_limit_error"


async def test_a_failure_midway_is_an_event(anyio_backend_name: str) -> None:
    engine = FakeEngine(hold_at=2)
    body = {"messages": HELLO, "max_tokens": 100, "stream": True}
    async with (
        serving(engine, anyio_backend_name) as running,
        running.client.stream("POST", "/v1/messages", json=body) as response,
    ):
        await engine.wait_held()
        engine.fail_all(EngineGenerateError("lost"))
        text = "".join([piece async for piece in response.aiter_text()])
    assert named_events(text)[-1] == {"type": "error", "error": {"type": "api_error", "message": "lost"}}


@pytest.mark.parametrize("header", [{"X-Api-Key": "one"}, {"Authorization": "Bearer one"}])
async def test_either_header_opens_the_routes(header: dict[str, str], anyio_backend_name: str) -> None:
    body = {"messages": HELLO, "max_tokens": 1}
    async with serving(FakeEngine(), anyio_backend_name, api_key="one") as running:
        for headers, status in ((header, 200), ({}, 401), ({"X-Api-Key": "two"}, 401)):
            response = await running.client.post("/v1/messages", json=body, headers=headers)
            assert response.status_code == status
    assert response.json()["error"]["type"] == "authentication_error"


async def test_tokens_are_counted_without_an_answer(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        path = "/v1/messages/count_tokens"
        counted = await running.client.post(path, json={"messages": HELLO, "system": "be brief"})
        wrong = await running.client.post(path, json={"messages": HELLO, "max_tokens": 1})
        missing = await running.client.post("/v1/messages/batches", json={})
    assert counted.json() == {"input_tokens": len("<system>be brief<user>hi<assistant>")}
    assert "max_tokens: unknown field" in wrong.json()["error"]["message"]
    assert running.engine.submitted == []
    assert (missing.status_code, missing.json()["type"]) == (404, "error")


async def test_a_limit_beyond_the_context_is_none(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        running.engine.max_model_len = 64
        for max_tokens, told in ((63, 63), (64, None)):
            await ask(running, max_tokens=max_tokens)
            assert running.engine.submitted[-1][1].max_tokens == told


async def test_a_begun_answer_is_continued(anyio_backend_name: str) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "My favourite is"}]
    async with serving(FakeEngine(), anyio_backend_name) as running:
        await ask(running, messages=begun)
    ((messages, _, options),) = running.engine.submitted
    assert messages[-1] == {"role": "assistant", "content": "My favourite is"}
    assert options["continue_final_message"] is True
