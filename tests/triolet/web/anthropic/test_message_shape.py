"""Why a message ended, and what it cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from triolet.request import FinishReason
from triolet.web.anthropic.message_shape import MessageShape
from triolet.web.generation import Delta, Generation, Usage

USAGE = Usage(prompt_tokens=10, completion_tokens=3, cached_tokens=4)


def ending(
    reason: FinishReason, *, stop: str | int | None = None, has_called: bool = False, has_limit: bool = True
) -> dict[str, Any]:
    shape = MessageShape("msg-1", "m", Generation([]), has_limit=has_limit)
    last = Delta(
        index=0, text="", logprobs=None, finish_reason=reason, stop_reason=stop, seed=1, has_called=has_called
    )
    shape.chunks(last)
    event: dict[str, Any] = json.loads(shape.closing(USAGE).split(b"\n")[1].removeprefix(b"data: "))
    return event


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"reason": FinishReason.STOP}, "end_turn"),
        ({"reason": FinishReason.STOP, "stop": 7}, "end_turn"),
        ({"reason": FinishReason.STOP, "has_called": True}, "tool_use"),
        ({"reason": FinishReason.STOP, "stop": "x"}, "stop_sequence"),
        ({"reason": FinishReason.LENGTH, "has_called": True}, "max_tokens"),
        ({"reason": FinishReason.LENGTH, "has_limit": False}, "model_context_window_exceeded"),
        ({"reason": FinishReason.TIMEOUT}, "max_tokens"),
        ({"reason": FinishReason.ABORT}, "max_tokens"),
    ],
)
def test_why_it_ended(options: dict[str, Any], reason: str) -> None:
    delta = ending(**options)["delta"]
    assert delta == {"stop_reason": reason, "stop_sequence": "x" if reason == "stop_sequence" else None}


def test_the_tokens_of_the_prompt_are_told_apart() -> None:
    assert ending(FinishReason.STOP)["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }
