"""What ``/v1/responses`` answers with: the types of ``/openapi.json``.

Responses are written by their shape, and a test holds them to these types. Knows nothing of how they are
made.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from triolet.web.openai_answers import TokenLogprob

__all__ = [
    "CallOfResponse",
    "CallOutput",
    "CountedInput",
    "DeletedResponse",
    "IncompleteDetails",
    "InputItems",
    "InputTokensDetails",
    "ItemPart",
    "MessageOfResponse",
    "OutputTokensDetails",
    "ReasoningAsked",
    "ReasoningOfResponse",
    "Response",
    "ResponseError",
    "ResponseUsage",
    "TextAsked",
]

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ItemPart(Struct):
    """A text. Those of answers have annotations, always empty, and log-probabilities where asked for."""

    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class MessageOfResponse(Struct, tag_field="type", tag="message"):
    """What somebody said."""

    id: str
    status: ItemStatus
    role: str
    content: list[ItemPart]


class ReasoningOfResponse(Struct, tag_field="type", tag="reasoning"):
    """What the model said to itself. ``summary`` is always empty."""

    id: str
    summary: list[Any]
    content: list[ItemPart]
    status: ItemStatus | UnsetType = UNSET


class CallOfResponse(Struct, tag_field="type", tag="function_call"):
    """A call that the caller is to run; its arguments are JSON."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CallOutput(Struct, tag_field="type", tag="function_call_output"):
    """What a call has brought."""

    id: str
    status: ItemStatus
    call_id: str
    output: str


class ReasoningAsked(Struct):
    """What was asked for."""

    effort: str | None
    summary: str | None


class TextAsked(Struct):
    """What was asked for."""

    format: dict[str, Any]
    verbosity: str


class ResponseError(Struct):
    """Why a response has failed."""

    code: str
    message: str


class IncompleteDetails(Struct):
    """Why a response ended early."""

    reason: Literal["max_output_tokens", "timeout"]


class InputTokensDetails(Struct):
    """Of the tokens of the prompt, those found in the prefix cache."""

    cached_tokens: int


class CountedInput(Struct):
    """``POST /v1/responses/input_tokens``."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class OutputTokensDetails(Struct):
    """Of the tokens of the answer, those of reasoning."""

    reasoning_tokens: int


class ResponseUsage(Struct):
    """Numbers of tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class Response(Struct):
    """``/v1/responses``: what was asked for, and what there is of the answer."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningAsked
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float | None
    text: TextAsked
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: str
    user: str | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    output: list[MessageOfResponse | ReasoningOfResponse | CallOfResponse]
    usage: ResponseUsage | None
    completed_at: int | None
    seed: int | None
    stop_reason: str | int | None


class DeletedResponse(Struct):
    """``DELETE /v1/responses/{response_id}``."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(Struct):
    """``GET /v1/responses/{response_id}/input_items``: a page of them."""

    object: Literal["list"]
    data: list[MessageOfResponse | ReasoningOfResponse | CallOfResponse | CallOutput]
    first_id: str | None
    last_id: str | None
    has_more: bool
