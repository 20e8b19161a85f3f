"""What each route is for, what it takes and an example: the facts behind ``/openapi.json`` and ``/docs``.

A route that is not described here fails a test. Knows the types of bodies, and nothing of how routes work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from triolet.core.control import PauseMode, SleepPart
from triolet.web.anthropic.message_answers import CountedTokens, MessageAnswer
from triolet.web.anthropic.message_events import MessageEvent
from triolet.web.anthropic.schema import CountTokensBody, MessagesBody
from triolet.web.control_api import AbortBody, RestartBody
from triolet.web.openai_answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    DecodedText,
    ModelCard,
    ModelList,
    RenderedPrompt,
    TokenizedText,
)
from triolet.web.operation_answers import (
    Aborted,
    CacheReset,
    Done,
    Health,
    Load,
    PauseState,
    Readiness,
    Restarted,
    SleepState,
    Version,
)
from triolet.web.responses_answers import CountedInput, DeletedResponse, InputItems, Response
from triolet.web.responses_events import ResponseEvent
from triolet.web.responses_schema import ResponsesBody
from triolet.web.schema import ChatBody, CompletionBody
from triolet.web.tokens_api import DetokenizeBody, TokenizeBody
from triolet.web.unserved_api import UNSERVED

__all__ = ["ROUTES", "Parameter", "Route"]

_HELLO: list[dict[str, str]] = [{"role": "user", "content": "Hello!"}]
_FLAG: Mapping[str, Any] = {"type": "boolean"}
_MODE: Mapping[str, Any] = {"enum": list(get_args(PauseMode)), "default": "abort"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """In the path or behind it. ``schema`` is a JSON schema."""

    name: str
    schema: Mapping[str, Any]
    place: Literal["path", "query"] = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path.

    ``answer`` is the type of the body of a success, ``event`` that of the data of a stream's events that tell
    of no error, and ``unavailable`` that of a 503 where it is no error. ``is_served``: it does something,
    instead of saying why not.
    """

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    tag: str
    body: type | None = None
    example: Mapping[str, Any] | None = None
    parameters: tuple[Parameter, ...] = ()
    answer: Any = str
    answer_type: str = "application/json"
    event: Any = None
    unavailable: Any = None
    is_served: bool = True


def _get(path: str, summary: str, tag: str = "operation", **more: Any) -> Route:
    return Route(method="get", path=path, summary=summary, tag=tag, **more)


def _post(path: str, summary: str, tag: str, **more: Any) -> Route:
    return Route(method="post", path=path, summary=summary, tag=tag, **more)


_RESPONSE_ID = Parameter(name="response_id", schema={"type": "string"}, place="path")

ROUTES: tuple[Route, ...] = (
    _post(
        "/v1/chat/completions", "Answer a conversation, through the model's chat template.", "generation",
        body=ChatBody, example={"messages": _HELLO, "max_completion_tokens": 12},
        answer=ChatCompletion, event=ChatCompletionChunk,
    ),
    _post(
        "/v1/completions", "Continue a text, or token ids.", "generation",
        body=CompletionBody, example={"prompt": "One, two,", "max_tokens": 8},
        answer=Completion, event=CompletionChunk,
    ),
    _post(
        "/v1/messages", "Answer a conversation, as Anthropic's Messages API does.", "generation",
        body=MessagesBody, example={"messages": _HELLO, "max_tokens": 12},
        answer=MessageAnswer, event=MessageEvent,
    ),
    _post(
        "/v1/responses", "Answer a conversation, as items that may be kept.", "generation",
        body=ResponsesBody, example={"input": "Hello!", "max_output_tokens": 16},
        answer=Response, event=ResponseEvent,
    ),
    _get(
        "/v1/responses/{response_id}", "A response that is being written or was kept.", "generation",
        answer=Response, event=ResponseEvent,
        parameters=(
            _RESPONSE_ID,
            Parameter(name="stream", schema={"type": "boolean", "default": False}),
            Parameter(name="starting_after", schema={"type": "integer", "minimum": 0}),
        ),
    ),
    Route(
        method="delete", path="/v1/responses/{response_id}", summary="Forget a response.", tag="generation",
        parameters=(_RESPONSE_ID,), answer=DeletedResponse,
    ),
    _post(
        "/v1/responses/{response_id}/cancel", "End a response that is being written.", "generation",
        parameters=(_RESPONSE_ID,), answer=Response,
    ),
    _get(
        "/v1/responses/{response_id}/input_items", "The items that a response answers.", "generation",
        answer=InputItems,
        parameters=(
            _RESPONSE_ID,
            Parameter(name="order", schema={"enum": ["asc", "desc"], "default": "desc"}),
            Parameter(name="after", schema={"type": "string"}),
            Parameter(name="limit", schema={"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
        ),
    ),
    _get("/v1/models", "The names that requests may use.", "generation", answer=ModelList),
    _get(
        "/v1/models/{name}", "One of those names.", "generation", answer=ModelCard,
        parameters=(Parameter(name="name", schema={"type": "string"}, place="path"),),
    ),
    _post(
        "/v1/chat/completions/render", "The prompt that a conversation becomes, without an answer.", "tokens",
        body=ChatBody, example={"messages": _HELLO}, answer=RenderedPrompt,
    ),
    _post(
        "/v1/messages/count_tokens", "The number of tokens that the same conversation begins with.", "tokens",
        body=CountTokensBody, example={"messages": _HELLO}, answer=CountedTokens,
    ),
    _post(
        "/v1/responses/input_tokens", "The number of tokens that the same response begins with.", "tokens",
        body=ResponsesBody, example={"input": "Hello!"}, answer=CountedInput,
    ),
    _post(
        "/tokenize", "The tokens of a text or of a conversation.", "tokens",
        body=TokenizeBody, example={"prompt": "One, two,", "return_token_strs": True},
        answer=TokenizedText,
    ),
    _post(
        "/detokenize", "The text of tokens.", "tokens", body=DetokenizeBody, example={"tokens": [72, 105]},
        answer=DecodedText,
    ),
    _get("/live", "200 as long as the event loop turns.", answer=Done),
    _get("/ready", "200 while new work is taken.", answer=Done, unavailable=Readiness),
    _get("/health", "The state in detail; 503 unless the engine serves.", answer=Health, unavailable=Health),
    _get("/metrics", "Metrics for Prometheus.", answer_type="text/plain"),
    _get("/load", "How busy the engine is.", answer=Load),
    _get("/version", "The version of triolet.", answer=Version),
    _get("/openapi.json", "This description of the routes.", answer=dict[str, Any]),
    _get("/docs", "The same as a page.", answer_type="text/html"),
    _get("/", "A page to chat with the model and to watch the engine.", "page", answer_type="text/html"),
    _get(
        "/page/{name}", "A file of that page.", "page", answer_type="text/javascript",
        parameters=(Parameter(name="name", schema={"type": "string"}, place="path"),),
    ),
    _post(
        "/pause", "Compute nothing more.", "control", answer=Done,
        parameters=(Parameter(name="mode", schema=_MODE), Parameter(name="clear_cache", schema=_FLAG)),
    ),
    _post("/resume", "Go on after a pause.", "control", answer=Done),
    _get("/is_paused", "Whether the engine is paused.", "control", answer=PauseState),
    _post(
        "/sleep", "Pause, and give memory back.", "control", answer=Done,
        parameters=(
            Parameter(name="level", schema={"enum": [0, 1, 2], "default": 1}),
            Parameter(name="mode", schema=_MODE),
        ),
    ),
    _post(
        "/wake_up", "Have everything again, or the parts that are named.", "control", answer=Done,
        parameters=(
            Parameter(name="tags", schema={"type": "array", "items": {"enum": list(get_args(SleepPart))}}),
        ),
    ),
    _get("/is_sleeping", "Whether anything is still to be woken.", "control", answer=SleepState),
    _post(
        "/reset_prefix_cache", "Forget the prefixes computed so far.", "control", answer=CacheReset,
        parameters=(Parameter(name="reset_running_requests", schema=_FLAG),),
    ),
    _post(
        "/abort_requests", "End requests, by the ids of their answers or their X-Request-Id.", "control",
        body=AbortBody, example={"request_ids": "all"}, answer=Aborted,
    ),
    _post(
        "/restart_rank", "Replace the process of an engine, once it has finished its requests.", "control",
        body=RestartBody, example={"rank": 0}, answer=Restarted,
    ),
    _post(
        "/drain", "Take no new work from here on.", "control", answer=Done,
        parameters=(Parameter(name="wait", schema={"type": "number", "minimum": 0, "maximum": 3600}),),
    ),
    *(_post(path, f"Not served: it needs {needed}.", "not served", is_served=False)
      for path, needed in UNSERVED.items()),
)  # fmt: skip
