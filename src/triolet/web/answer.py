"""What all kinds of answers share: a head, and that they are streamed or read to the end.

Knows nothing of the choices in an answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from quart import Response, request

from triolet.errors import ModelNotFoundError
from triolet.web.body import BodyTimeoutError, discard_body
from triolet.web.errors import is_messages_route
from triolet.web.generation import Delta, Generation, PromptProgress, Usage
from triolet.web.request_scope import request_name, request_scope
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings
from triolet.web.sse import StreamShape, event_stream_response

__all__ = ["AnswerHead", "AnswerShape", "answer", "check_model", "finish_response", "json_response"]


LONGEST_NAME = 200
"""How much of what is asked for is told again."""


class AnswerShape(StreamShape, Protocol):
    """How one kind of answer is written, streamed and not."""

    def add(self, delta: Delta) -> None:
        """Take the next delta of an answer that is not streamed."""

    def plain(self, usage: Usage) -> Response:
        """The answer that the deltas add up to."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What is the same in all chunks of an answer. ``id`` is made here: a caller's own id is only echoed."""

    id: str
    created: int
    model: str

    @classmethod
    def create(cls, prefix: str, model: str, settings: WebSettings) -> AnswerHead:
        answer_id = prefix + secrets.token_hex(12)
        scope = request_scope()
        scope.answer_id, scope.model = answer_id, model
        return cls(answer_id, int(settings.clock()), model)

    def as_mapping(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def check_model(engine: ServingEngine, model: str | None) -> str:
    """The name to answer with; the canonical one if none is given. Raises :class:`ModelNotFoundError`."""
    if model is None:
        return engine.model_names[0]
    if model not in engine.model_names:
        served = ", ".join(repr(name) for name in engine.model_names)
        asked = repr(model) if len(model) <= LONGEST_NAME else f"{model[:LONGEST_NAME]!r}…"
        raise ModelNotFoundError(f"The model {asked} does not exist; served here: {served}.", param="model")
    return model


async def answer(
    generation: Generation,
    shape: AnswerShape,
    *,
    is_streamed: bool,
    ping_interval: float,
    tell_progress: Callable[[PromptProgress], bytes] | None = None,
) -> Response:
    """The response to a request that has been submitted, streamed or whole. Leaving it aborts the request."""
    request_scope().generation = generation
    if is_streamed:
        return await event_stream_response(
            generation, shape, ping_interval=ping_interval, tell_progress=tell_progress
        )
    try:
        while not generation.is_finished:
            for delta in await generation.next():
                shape.add(delta)
    finally:
        generation.abort()
    return shape.plain(generation.usage)


def json_response(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status=status, content_type="application/json")


async def finish_response(response: Response) -> Response:
    """What every answer gets, once: the whole request has been read, and it is named."""
    scope = request_scope()
    if scope.finished is response:
        return response
    scope.finished = response
    if response.status_code == BodyTimeoutError.status or not await discard_body(request):
        response.headers["Connection"] = "close"
    name = request_name()
    response.headers["X-Request-Id"] = name
    if is_messages_route():
        response.headers["Request-Id"] = name
    return response
