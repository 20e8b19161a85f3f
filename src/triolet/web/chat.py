"""``POST /v1/chat/completions``: the route, and the shape of its answers and chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from triolet.errors import TrioletError
from triolet.request import FinishReason
from triolet.text.parsed_text import ToolCallDelta, fold_calls
from triolet.web.answer import AnswerHead, answer, check_model, json_response
from triolet.web.auth import caller_identity
from triolet.web.body import read_body
from triolet.web.chat_request import prepare_chat, submit_chat
from triolet.web.generation import (
    Delta,
    FoldedChoice,
    FoldedChoices,
    PromptProgress,
    Usage,
    counting_refusals,
    require_serving,
)
from triolet.web.headers import given_rank, given_timeout
from triolet.web.logprobs import ChatLogprobs, prompt_logprobs_of
from triolet.web.messages import check_num_messages
from triolet.web.schema import ChatBody, decode_body
from triolet.web.serving_engine import ServingEngine, TokenText
from triolet.web.settings import WebSettings
from triolet.web.sse import ChunkFrame

__all__ = ["ChatShape", "add_chat_routes"]

_TEXT = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'


class ChatShape:
    """How a chat completion is written, streamed and not."""

    def __init__(
        self, head: AnswerHead, tokenizer: TokenText, body: ChatBody, usage_so_far: Callable[[], Usage]
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._choices = FoldedChoices()
        self._num_choices = body.num_choices
        self._has_prompt_logprobs = body.prompt_logprobs is not None
        self._logprobs = ChatLogprobs(tokenizer)
        self._frame = ChunkFrame(
            head.as_mapping("chat.completion.chunk"),
            is_usage_included=body.is_usage_included,
            usage_so_far=usage_so_far if body.is_usage_continuous else None,
        )

    def opening(self) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, role) for index in range(self._num_choices))

    def chunks(self, delta: Delta) -> bytes:
        if delta.is_text_only:
            return self._frame.chunk(_TEXT % (delta.index, msgspec.json.encode(delta.text)))
        events = b"".join(self._chunk(delta.index, news) for news in _other_news(delta))
        if delta.logprobs:
            logprobs = self._logprobs.convert(delta.logprobs)
            events += self._chunk(delta.index, {"content": delta.text}, logprobs)
        elif delta.text:
            events += self._frame.chunk(_TEXT % (delta.index, msgspec.json.encode(delta.text)))
        if delta.finish_reason is not None:
            events += self._chunk(delta.index, {}, last=delta)
        return events

    def closing(self, usage: Usage) -> bytes:
        return self._frame.closing(usage)

    def progress(self, progress: PromptProgress) -> bytes:
        """What comes while the prompt is computed: a chunk without news of the first choice."""
        choice = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":null}'
        return self._frame.progress(choice, progress)

    def failure(self, error: TrioletError) -> bytes:
        return self._frame.failure(error)

    def add(self, delta: Delta) -> None:
        self._choices.add(delta)

    def plain(self, usage: Usage) -> Response:
        choices = self._choices.in_order()
        content = self._head.as_mapping("chat.completion") | {
            "choices": [self._choice(choice) for choice in choices],
            "usage": usage.as_mapping(),
        }
        if self._has_prompt_logprobs:
            content["prompt_logprobs"] = prompt_logprobs_of(choices[0], self._tokenizer)
        return json_response(content)

    def _choice(self, choice: FoldedChoice) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": _message(choice),
            "logprobs": None if choice.logprobs is None else self._logprobs.convert(choice.logprobs),
            **_ending(choice.last),
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        last: Delta | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, **_ending(last)}
        return self._frame.chunk(msgspec.json.encode(choice))


def _ending(last: Delta | None) -> dict[str, Any]:
    if last is None or last.finish_reason is None:
        return {"finish_reason": None}
    is_calling = last.has_called and last.finish_reason is FinishReason.STOP
    reason = "tool_calls" if is_calling else last.finish_reason.value
    return {"finish_reason": reason, "stop_reason": last.stop_reason, "seed": last.seed}


def _message(choice: FoldedChoice) -> dict[str, Any]:
    """The message of a choice; ``reasoning_content`` is the older name of ``reasoning``."""
    calls = [_call(call) for call in fold_calls(choice.tool_calls)]
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if calls:
        message |= {"content": choice.text or None, "tool_calls": calls}
    if reasoning := "".join(choice.reasonings):
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return message


def _other_news(delta: Delta) -> Iterator[dict[str, Any]]:
    """Reasoning and calls, each in the shape of a chunk's delta."""
    if delta.reasoning:
        yield {"reasoning": delta.reasoning, "reasoning_content": delta.reasoning}
    if delta.tool_calls:
        yield {"tool_calls": [{"index": call.index} | _call(call) for call in delta.tool_calls]}


def _call(call: ToolCallDelta) -> dict[str, Any]:
    """A call, or news of one: only the first has its id and its name."""
    function: dict[str, Any] = {"arguments": call.arguments}
    if call.name is None:
        return {"function": function}
    return {"id": call.id, "type": "function", "function": {"name": call.name, **function}}


def add_chat_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the route to a blueprint."""

    @blueprint.post("/v1/chat/completions")
    async def chat_completions() -> Response:
        with counting_refusals(engine):
            body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), ChatBody)
            with body.blaming_its_own_fields():
                check_num_messages(body.messages, settings.max_num_messages)
                params, messages = body.params(), body.message_mappings()
                options = body.options(caller_identity(body.user), given_timeout(), given_rank())
            head = AnswerHead.create("chatcmpl-", check_model(engine, body.model), settings)
            require_serving(engine)
            with body.blaming_its_own_fields():
                chat = await prepare_chat(engine, body, params, messages)
        generation = await submit_chat(
            engine, body, chat, request_id=head.id, options=options, is_leaving=settings.is_leaving
        )
        shape = ChatShape(head, engine.tokenizer, body, lambda: generation.usage)
        return await answer(
            generation,
            shape,
            is_streamed=bool(body.stream),
            ping_interval=settings.ping_interval,
            tell_progress=shape.progress if body.return_progress else None,
        )
