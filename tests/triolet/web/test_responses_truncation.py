"""Which turns are left out of a conversation that is too long, and how many conversations are measured."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.fake_text import TaggedTemplate

from triolet.errors import InvalidRequestError, OverloadedError
from triolet.sampling_params import SamplingParams
from triolet.text.chat_template import ChatTemplate
from triolet.web.chat_request import ChatRequest
from triolet.web.responses_truncation import MAX_SEARCHING, MAX_WAITING, Truncation

pytestmark = pytest.mark.anyio
SYSTEM = {"role": "system", "content": "be brief"}
MANY = [{"role": ("user", "assistant")[i % 2], "content": f"{i:04}"} for i in range(9)]
ALTERNATING = """{%- for m in messages -%}
    {%- if (m.role == "user") != loop.index0 is divisibleby(2) -%}
        {{ raise_exception("must alternate") }}
    {%- endif -%}
    <{{ m.role }}>{{ m.content }}
{%- endfor -%}"""


def engine_of(room: int, template: Any = None) -> FakeEngine:
    engine = FakeEngine()
    engine.max_model_len = room
    if template is not None:
        engine.chat_template = template
    return engine


def chat_of(messages: list[dict[str, Any]]) -> ChatRequest:
    return ChatRequest(messages, SamplingParams(), {"add_generation_prompt": True}, None)


async def kept(
    messages: list[dict[str, Any]], room: int, num_output_tokens: int | None = None, template: Any = None
) -> Any:
    truncation = Truncation(engine_of(room, template))
    return (await truncation.shorten(chat_of(messages), num_output_tokens)).messages


def length(messages: list[dict[str, Any]]) -> int:
    return len(TaggedTemplate().render(messages))


async def test_no_more_is_left_out_than_it_takes() -> None:
    for start in range(0, 9, 2):
        expected = [SYSTEM, *MANY[start:]]
        assert await kept([SYSTEM, *MANY], length(expected) + 1) == expected
        assert await kept([SYSTEM, *MANY], length(expected) + 5, 5) == expected


async def test_the_last_turn_stays_even_where_it_does_not_fit() -> None:
    result = {"role": "tool", "content": "dry", "tool_call_id": "1"}
    assert await kept([SYSTEM, *MANY], 5) == [SYSTEM, MANY[-1]]
    assert await kept([SYSTEM], 5) == [SYSTEM]
    assert await kept(MANY[:1], 5) == MANY[:1]
    assert await kept([*MANY, MANY[1], result], 5) == [MANY[8], MANY[1], result]


async def test_a_template_that_wants_roles_to_alternate_gets_them() -> None:
    template = ChatTemplate(ALTERNATING)
    for start in range(0, 9, 2):
        room = len(template.render(MANY[start:])) + 1
        assert await kept(MANY, room, template=template) == MANY[start:]
    with pytest.raises(InvalidRequestError, match="must alternate"):
        await kept(MANY[1:], 100, template=template)


async def test_what_a_template_is_too_slow_or_long_for_does_not_fit() -> None:
    huge = {"role": "user", "content": "x" * 2**22}
    assert await kept([huge, MANY[1], MANY[2]], 100, template=ChatTemplate(ALTERNATING)) == [MANY[2]]


async def test_without_a_template_nothing_is_done() -> None:
    engine = FakeEngine()
    engine.chat_template = None
    chat = chat_of(MANY)
    assert await Truncation(engine).shorten(chat, None) is chat


class HeldTemplate(TaggedTemplate):
    """Renders once it may."""

    def __init__(self) -> None:
        self.may_render = threading.Event()
        self.num_rendered = 0

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        self.num_rendered += 1
        assert self.may_render.wait(30)
        return super().render(messages, **options)


async def test_few_are_measured_at_a_time_and_not_all_may_wait() -> None:
    template = HeldTemplate()
    truncation = Truncation(engine_of(5, template))
    async with anyio.create_task_group() as group:
        for _ in range(MAX_SEARCHING + MAX_WAITING):
            group.start_soon(truncation.shorten, chat_of(MANY), None)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(OverloadedError):
            await truncation.shorten(chat_of(MANY), None)
        assert template.num_rendered <= MAX_SEARCHING
        group.cancel_scope.cancel()
    template.may_render.set()


async def test_a_search_that_nobody_waits_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, is_told = threading.Event(), threading.Event()

    def search(self: Any, template: Any, chat: Any, room: int, is_given_up: threading.Event) -> Any:
        has_begun.set()
        if is_given_up.wait(30):
            is_told.set()

    monkeypatch.setattr(Truncation, "_search", search)
    async with anyio.create_task_group() as group:
        group.start_soon(Truncation(engine_of(5)).shorten, chat_of(MANY), None)
        assert await anyio.to_thread.run_sync(has_begun.wait, 30)
        group.cancel_scope.cancel()
    assert is_told.wait(30)


def test_a_search_that_is_told_renders_no_more() -> None:
    template, is_given_up = HeldTemplate(), threading.Event()
    is_given_up.set()
    Truncation(engine_of(5))._search(template, chat_of(MANY), 1, is_given_up)
    assert template.num_rendered == 0
