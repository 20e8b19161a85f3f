"""The response object, and how it is streamed: numbered events around the items of the answer.

A plain answer is the response with which the stream of the same deltas would have ended. Knows nothing of
routes or of where responses are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from quart import Response

from triolet.errors import TrioletError
from triolet.request import FinishReason
from triolet.web.answer import AnswerHead, json_response
from triolet.web.generation import Delta, PromptProgress, Usage
from triolet.web.responses_output import Event, OutputItems
from triolet.web.responses_schema import ResponsesBody

__all__ = ["ResponseShape", "response_head"]

_ENDINGS = {
    FinishReason.STOP: ("completed", None),
    FinishReason.LENGTH: ("incomplete", "max_output_tokens"),
    FinishReason.TIMEOUT: ("incomplete", "timeout"),
    FinishReason.ABORT: ("cancelled", None),
}
"""The status of a response, and why it is incomplete."""


def response_head(head: AnswerHead, body: ResponsesBody, *, is_stored: bool) -> dict[str, Any]:
    """What a response says from the beginning: its name, and what was asked for."""
    reasoning = body.reasoning
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": is_stored,
        "temperature": body.temperature,
        "text": {"format": body.text_format, "verbosity": "medium"},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [msgspec.to_builtins(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


class ResponseShape:
    """How a response is written, streamed and not.

    ``on_end`` is given the response once it has ended, before the last of it goes out, and says whether it is
    kept. One that ``is_queued`` is in progress from the first news of it on.
    """

    def __init__(
        self,
        head: dict[str, Any],
        output: OutputItems,
        clock: Callable[[], float],
        *,
        on_end: Callable[[dict[str, Any]], bool],
        is_queued: bool = False,
    ) -> None:
        self._head = head
        self._output = output
        self._clock = clock
        self._on_end = on_end
        self._status = "queued" if is_queued else "in_progress"
        self._last: Delta | None = None
        self._num_events = 0

    def opening(self) -> bytes:
        response = self.response()
        return self._encode(
            [
                {"type": "response.created", "response": response},
                {"type": f"response.{self._status}", "response": response},
            ]
        )

    def progress(self, _progress: PromptProgress) -> bytes:
        """Something of the prompt has been computed."""
        return self._leave_queue()

    def chunks(self, delta: Delta) -> bytes:
        # What ends in the queue was never in progress.
        begun = self._leave_queue() if delta.num_tokens else b""
        return begun + self._encode(self._take(delta))

    def closing(self, usage: Usage) -> bytes:
        status, _ = self._ending
        # There is no event of its own for a response that was cancelled.
        kind = "completed" if status == "completed" else "incomplete"
        events = self._finish()
        return self._encode(
            [*events, {"type": f"response.{kind}", "response": self._ended(status, usage=usage)}]
        )

    def failure(self, error: TrioletError) -> bytes:
        failed = {"code": _code(error), "message": error.message}
        response = self._ended("failed", error=failed)
        return self._encode(
            [
                {"type": "error", "code": error.code, "message": error.message, "param": error.param},
                {"type": "response.failed", "response": response},
            ]
        )

    def add(self, delta: Delta) -> None:
        self._take(delta)

    def plain(self, usage: Usage) -> Response:
        self._finish()
        return json_response(self._ended(self._ending[0], usage=usage))

    def response(
        self, status: str | None = None, *, usage: Usage | None = None, error: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The response with what there is of it, as one that is still written unless ``status`` is told."""
        status = status or self._status
        reason = self._ending[1] if status == "incomplete" else None
        item_status = "in_progress" if status == self._status else "incomplete"
        return self._head | {
            "status": status,
            "error": error,
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": self._output.items(item_status),
            "usage": None if usage is None else self._usage(usage),
            "completed_at": int(self._clock()) if status == "completed" else None,
            "seed": None if self._last is None else self._last.seed,
            "stop_reason": None if self._last is None else self._last.stop_reason,
        }

    def _leave_queue(self) -> bytes:
        if self._status != "queued":
            return b""
        self._status = "in_progress"
        return self._encode([{"type": "response.in_progress", "response": self.response()}])

    def _take(self, delta: Delta) -> list[Event]:
        self._last = delta
        return self._output.add(delta)

    def _finish(self) -> list[Event]:
        """The events that close the items."""
        return self._output.finish("completed" if self._ending[0] == "completed" else "incomplete")

    def _ended(self, status: str, **more: Any) -> dict[str, Any]:
        response = self.response(status, **more)
        response["store"] = self._on_end(response)
        return response

    @property
    def _ending(self) -> tuple[str, str | None]:
        reason = self._last.finish_reason if self._last is not None else None
        return ("in_progress", None) if reason is None else _ENDINGS[reason]

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._output.num_reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }

    def _encode(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._encode_one, events))

    def _encode_one(self, event: Event) -> bytes:
        numbered = event | {"sequence_number": self._num_events}
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(numbered))


def _code(error: TrioletError) -> str:
    """Of the few codes that a failed response may have, the nearest."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "invalid_prompt" if error.status < 500 else "server_error"
