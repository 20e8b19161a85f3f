"""The response object and its events: every ending, plain as streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.triolet.web.responses import events_of_stream

from triolet.errors import EngineGenerateError, InvalidRequestError, OverloadedError, TrioletError
from triolet.request import FinishReason
from triolet.web.answer import AnswerHead
from triolet.web.generation import Delta, Usage
from triolet.web.responses_output import OutputItems
from triolet.web.responses_schema import FunctionTool, ResponsesBody
from triolet.web.responses_shape import ResponseShape, response_head

HEAD = AnswerHead("resp_1", 1000, "m")
USAGE = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2)


def new_shape(*, is_kept: bool = True) -> tuple[ResponseShape, list[dict[str, Any]]]:
    """A shape, and the responses that it says have ended."""
    ended: list[dict[str, Any]] = []

    def keep(response: dict[str, Any]) -> bool:
        ended.append(response)
        return is_kept

    head = response_head(HEAD, ResponsesBody(input="hi"), is_stored=True)
    output = OutputItems(lambda kind: f"{kind}_1")
    return ResponseShape(head, output, lambda: 1010.5, on_end=keep), ended


def delta(text: str, reason: FinishReason | None = None) -> Delta:
    return Delta(index=0, text=text, logprobs=None, finish_reason=reason, stop_reason=None, seed=7)


@pytest.mark.parametrize(
    ("reason", "event", "status", "details"),
    [
        (FinishReason.STOP, "completed", "completed", None),
        (FinishReason.LENGTH, "incomplete", "incomplete", {"reason": "max_output_tokens"}),
        (FinishReason.TIMEOUT, "incomplete", "incomplete", {"reason": "timeout"}),
        (FinishReason.ABORT, "incomplete", "cancelled", None),
    ],
)
@pytest.mark.anyio
async def test_every_ending(reason: FinishReason, event: str, status: str, details: Any) -> None:
    shape, ended = new_shape()
    data = shape.opening() + shape.chunks(delta("ab")) + shape.chunks(delta("c", reason))
    assert shape.response("in_progress")["output"][0]["content"][0]["text"] == "abc"
    final = events_of_stream((data + shape.closing(USAGE)).decode())[-1]
    assert (final["type"], final["response"]["status"]) == (f"response.{event}", status)
    assert final["response"]["incomplete_details"] == details
    assert final["response"]["completed_at"] == (1010 if status == "completed" else None)
    assert final["response"]["output"][0]["status"] == (status if status == "completed" else "incomplete")
    assert final["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 2}
    assert ended == [final["response"]]
    other, ended = new_shape()
    other.add(delta("ab"))
    other.add(delta("c", reason))
    plain = json.loads(await other.plain(USAGE).get_data())
    assert plain == final["response"] == ended[0]


def test_what_is_not_kept_in_the_end_says_so() -> None:
    for is_kept in (True, False):
        shape, _ = new_shape(is_kept=is_kept)
        opening = events_of_stream(shape.opening().decode())
        data = shape.chunks(delta("a", FinishReason.STOP)) + shape.closing(USAGE)
        assert opening[0]["response"]["store"] is True
        assert events_of_stream(data.decode())[-1]["response"]["store"] is is_kept


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineGenerateError("x"), "server_error"),
        (OverloadedError("x"), "rate_limit_exceeded"),
        (InvalidRequestError("x"), "invalid_prompt"),
    ],
)
def test_a_failure_has_one_of_the_codes_of_the_api(error: TrioletError, code: str) -> None:
    shape, ended = new_shape()
    told, failed = events_of_stream(shape.failure(error).decode())
    assert (told["type"], told["message"], told["code"]) == ("error", "x", error.code)
    assert failed["response"]["error"] == {"code": code, "message": "x"}
    assert failed["response"]["status"] == "failed"
    assert ended == [failed["response"]]


def test_the_head_says_what_was_asked_for() -> None:
    tool = FunctionTool("function", "f", parameters={"type": "object"})
    body = ResponsesBody(
        input="hi", tools=[tool], tool_choice="required", parallel_tool_calls=False, top_p=0.5
    )
    head = response_head(HEAD, body, is_stored=False)
    assert (head["id"], head["created_at"], head["model"], head["store"]) == ("resp_1", 1000, "m", False)
    assert (head["tool_choice"], head["parallel_tool_calls"], head["top_p"]) == ("required", False, 0.5)
    assert head["tools"] == [
        {
            "type": "function", "name": "f", "description": None, "parameters": {"type": "object"},
            "strict": None,
        }
    ]  # fmt: skip
