"""A stream of chunks: pings while nothing comes, errors as events, and always one ``[DONE]``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.fake_text import ByteTokenizer
from tests.triolet.web.serving import events_of

from triolet.errors import EngineGenerateError
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.statistics import EngineState
from triolet.web.answer import AnswerHead
from triolet.web.chat import ChatShape
from triolet.web.generation import Delta, Generation, Usage, submit_all
from triolet.web.schema import ChatBody, StreamOptions
from triolet.web.sse import DONE, PING, EventStream, event_stream_response

pytestmark = pytest.mark.anyio
HEAD = AnswerHead("chatcmpl-1", 1700000000, "m")


def ready_engine(**options: Any) -> FakeEngine:
    engine = FakeEngine(**options)
    engine.state = EngineState.READY
    return engine


async def generation_of(engine: FakeEngine, **options: Any) -> Generation:
    params = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA, **options)
    return await submit_all([partial(engine.submit, "hi", params)])


def chat_shape(*, is_usage_included: bool = False) -> ChatShape:
    body = ChatBody(messages=[], stream_options=StreamOptions(include_usage=is_usage_included))
    return ChatShape(HEAD, ByteTokenizer(), body, Usage)


async def stream_of(engine: FakeEngine, *, is_usage_included: bool = False) -> EventStream:
    shape = chat_shape(is_usage_included=is_usage_included)
    generation = await generation_of(engine)
    return EventStream(generation, shape, await generation.next(0), ping_interval=0)


async def read_all(stream: EventStream) -> str:
    return "".join([data.decode() async for data in stream])


async def test_every_chunk_has_the_same_head_and_the_end_is_one_done() -> None:
    events = events_of(await read_all(await stream_of(ready_engine(reply="hello"))))
    assert events.count("[DONE]") == 1
    chunks = [event for event in events if event != "[DONE]"]
    assert events[-1] == "[DONE]"
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in chunks} == {
        ("chatcmpl-1", "chat.completion.chunk", 1700000000, "m")
    }
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert reasons[-1] == "stop"
    assert not any("usage" in chunk for chunk in chunks)


async def test_usage_comes_once_last_and_only_when_asked_for() -> None:
    events = events_of(await read_all(await stream_of(ready_engine(reply="hello"), is_usage_included=True)))
    chunks = events[:-1]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 7


async def test_pings_while_nothing_comes() -> None:
    engine = ready_engine(hold_at=0)
    stream = await stream_of(engine)
    first = await anext(stream)
    assert first.endswith(PING)
    assert await anext(stream) == PING
    engine.release()
    assert events_of(await read_all(stream))[-1] == "[DONE]"


async def test_pings_while_outputs_come_that_tell_nothing_yet() -> None:
    def held_back(delta: Delta) -> Delta:
        return delta if delta.finish_reason else replace(delta, text="")

    engine = ready_engine(reply="x" * 9)
    params = SamplingParams(max_tokens=100, output_kind=RequestOutputKind.DELTA)
    for ping_interval, num_pings in ((0.0, 8), (1000.0, 1)):
        generation = await submit_all([partial(engine.submit, "hi", params)], amend=held_back)
        stream = EventStream(generation, chat_shape(), await generation.next(), ping_interval=ping_interval)
        assert (await read_all(stream)).count(PING.decode()) == num_pings


async def test_an_output_without_text_writes_nothing_by_itself() -> None:
    engine = ready_engine(reply="🙂")
    text = await read_all(await stream_of(engine))
    contents = [event["choices"][0]["delta"].get("content") for event in events_of(text)[:-1]]
    assert contents == ["", "🙂", None]


async def test_a_failure_midway_is_an_event_and_then_done() -> None:
    engine = ready_engine(hold_at=2)
    stream = await stream_of(engine)
    await anext(stream)
    await anext(stream)
    engine.fail_all(EngineGenerateError("lost"))
    events = events_of(await read_all(stream))
    assert events[-2]["error"]["message"] == "lost"
    assert events[-2]["error"]["type"] == "server_error"
    assert events[-1] == "[DONE]"
    assert not any("choices" in event for event in events[:-1])


async def test_an_unexpected_failure_is_told_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    engine = ready_engine(hold_at=1)
    stream = await stream_of(engine)
    await anext(stream)
    engine.fail_all(KeyError("secret"))
    text = await read_all(stream)
    assert "secret" not in text
    assert "Internal server error" in text
    assert "secret" in caplog.text


async def test_leaving_it_aborts_at_once() -> None:
    engine = ready_engine(hold_at=2)
    stream = await stream_of(engine)
    await anext(stream)
    await stream.aclose()
    assert engine.num_open == 0
    assert [data async for data in stream] == []


async def test_cancelling_it_aborts_at_once() -> None:
    engine = ready_engine(hold_at=1)
    shape = chat_shape()
    generation = await generation_of(engine)
    stream = EventStream(generation, shape, await generation.next(), ping_interval=1000)
    await anext(stream)
    with anyio.move_on_after(0.01) as scope:
        await anext(stream)
    assert scope.cancelled_caught
    assert engine.num_open == 0


async def test_an_early_failure_is_raised_before_anything_is_sent() -> None:
    engine = ready_engine(hold_at=0)
    generation = await generation_of(engine)
    engine.fail_all(EngineGenerateError("lost"))
    shape = chat_shape()
    with pytest.raises(EngineGenerateError):
        await event_stream_response(generation, shape, ping_interval=10)
    assert engine.num_open == 0


def test_done_is_an_event_of_its_own() -> None:
    assert events_of(DONE.decode()) == ["[DONE]"]
