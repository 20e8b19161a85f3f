"""The events of a streamed response: the types of ``/openapi.json``.

Events are written by the shape of a response and its items, and a test holds them to these types. All are
numbered, from 0 on.
"""

from __future__ import annotations

from msgspec import Struct

from triolet.web.openai_answers import TokenLogprob
from triolet.web.responses_answers import (
    CallOfResponse,
    ItemPart,
    MessageOfResponse,
    ReasoningOfResponse,
    Response,
)

__all__ = [
    "ArgumentsDelta",
    "ArgumentsDone",
    "ContentPartAdded",
    "ContentPartDone",
    "Numbered",
    "OfItem",
    "OfPart",
    "OfResponse",
    "OutputItemAdded",
    "OutputItemDone",
    "OutputTextDelta",
    "OutputTextDone",
    "ReasoningTextDelta",
    "ReasoningTextDone",
    "ResponseCompleted",
    "ResponseCreated",
    "ResponseEvent",
    "ResponseFailed",
    "ResponseInProgress",
    "ResponseIncomplete",
    "ResponseQueued",
    "StreamError",
]


class Numbered(Struct, tag_field="type", kw_only=True):
    """What all events have."""

    sequence_number: int


class OfResponse(Numbered, kw_only=True):
    """The response with what there is of it."""

    response: Response


class ResponseCreated(OfResponse, tag="response.created"):
    """The first event."""


class ResponseQueued(OfResponse, tag="response.queued"):
    """The second event of one that is written in the background."""


class ResponseInProgress(OfResponse, tag="response.in_progress"):
    """The second event of any other, and of such a one the first once something was computed for it."""


class ResponseCompleted(OfResponse, tag="response.completed"):
    """The last event of an answer that is whole."""


class ResponseIncomplete(OfResponse, tag="response.incomplete"):
    """The last event of one that was cut off or cancelled; its status says which."""


class ResponseFailed(OfResponse, tag="response.failed"):
    """The last event of one that has failed."""


class OfItem(Numbered, kw_only=True):
    """An item, by its place in the output."""

    output_index: int


class OutputItemAdded(OfItem, tag="response.output_item.added"):
    """An item begins."""

    item: MessageOfResponse | ReasoningOfResponse | CallOfResponse


class OutputItemDone(OfItem, tag="response.output_item.done"):
    """An item is whole."""

    item: MessageOfResponse | ReasoningOfResponse | CallOfResponse


class OfPart(OfItem, kw_only=True):
    """A part of an item, of which each has one at most."""

    item_id: str
    content_index: int


class ContentPartAdded(OfPart, tag="response.content_part.added"):
    """A text begins."""

    part: ItemPart


class ContentPartDone(OfPart, tag="response.content_part.done"):
    """A text is whole."""

    part: ItemPart


class OutputTextDelta(OfPart, tag="response.output_text.delta"):
    """More of a message."""

    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(OfPart, tag="response.output_text.done"):
    """All of a message."""

    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(OfPart, tag="response.reasoning_text.delta"):
    """More of what the model says to itself."""

    delta: str


class ReasoningTextDone(OfPart, tag="response.reasoning_text.done"):
    """All of it."""

    text: str


class ArgumentsDelta(OfItem, tag="response.function_call_arguments.delta"):
    """More of the arguments of a call, as JSON."""

    item_id: str
    delta: str


class ArgumentsDone(OfItem, tag="response.function_call_arguments.done"):
    """All of them."""

    item_id: str
    name: str
    arguments: str


class StreamError(Numbered, tag="error"):
    """Why the response has failed; it comes before the event that says so."""

    code: str | None
    message: str
    param: str | None


ResponseEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | OutputItemAdded
    | ContentPartAdded
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | ContentPartDone
    | OutputItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | StreamError
)
