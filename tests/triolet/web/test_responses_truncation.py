"""Which messages are left out of a conversation that is too long."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine

from triolet.sampling_params import SamplingParams
from triolet.web.chat_request import ChatRequest
from triolet.web.responses_truncation import shortened

pytestmark = pytest.mark.anyio
SYSTEM = {"role": "system", "content": "be brief"}
MANY = [{"role": ("user", "assistant")[i % 2], "content": f"{i:04}"} for i in range(9)]


async def kept(messages: list[dict[str, Any]], room: int, num_output_tokens: int | None = None) -> Any:
    engine = FakeEngine()
    engine.max_model_len = room
    chat = ChatRequest(messages, SamplingParams(), {"add_generation_prompt": True}, None)
    return (await shortened(engine, chat, num_output_tokens)).messages


def length(messages: list[dict[str, Any]]) -> int:
    template = FakeEngine().chat_template
    assert template is not None
    return len(template.render(messages))


async def test_no_more_is_left_out_than_it_takes() -> None:
    messages = [SYSTEM, *MANY]
    for num_kept in range(1, 10):
        expected = [SYSTEM, *MANY[-num_kept:]]
        assert await kept(messages, length(expected) + 1) == expected
        assert await kept(messages, length(expected) + 5, 5) == expected


async def test_the_last_message_stays_even_where_it_does_not_fit() -> None:
    assert await kept([SYSTEM, *MANY], 5) == [SYSTEM, MANY[-1]]
    assert await kept([SYSTEM], 5) == [SYSTEM]
    assert await kept(MANY[:1], 5) == MANY[:1]


async def test_results_go_with_their_calls() -> None:
    result = {"role": "tool", "content": "dry", "tool_call_id": "1"}
    messages = [MANY[0], MANY[1], result, result, MANY[2]]
    assert await kept(messages, length([result, result, MANY[2]]) + 1) == [MANY[2]]
    assert await kept([MANY[0], MANY[1], result], length([result]) + 1) == [result]


async def test_without_a_template_nothing_is_done() -> None:
    engine = FakeEngine()
    engine.chat_template = None
    chat = ChatRequest(MANY, SamplingParams(), {}, None)
    assert await shortened(engine, chat, None) is chat
