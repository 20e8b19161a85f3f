"""``POST /v1/completions``: the route, and the shape of its answers and chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from triolet.errors import TrioletError
from triolet.web.answer import AnswerHead, answer, check_model, json_response
from triolet.web.auth import caller_identity
from triolet.web.body import read_body
from triolet.web.echo import Echo
from triolet.web.generation import (
    Delta,
    FoldedChoice,
    FoldedChoices,
    PromptProgress,
    Usage,
    counting_refusals,
    require_serving,
    submit_all,
)
from triolet.web.headers import given_rank, given_timeout
from triolet.web.logprobs import CompletionLogprobs, prompt_logprobs_of
from triolet.web.schema import CompletionBody, decode_body
from triolet.web.serving_engine import ServingEngine, TokenText
from triolet.web.settings import WebSettings
from triolet.web.sse import ChunkFrame
from triolet.web.suffix import fill_in

__all__ = ["CompletionShape", "add_completion_routes"]


class CompletionShape:
    """How a completion is written, streamed and not."""

    def __init__(
        self, head: AnswerHead, tokenizer: TokenText, body: CompletionBody, usage_so_far: Callable[[], Usage]
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._choices = FoldedChoices()
        self._has_prompt_logprobs = body.prompt_logprobs is not None
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._frame = ChunkFrame(
            head.as_mapping("text_completion"),
            is_usage_included=body.is_usage_included,
            usage_so_far=usage_so_far if body.is_usage_continuous else None,
        )

    def opening(self) -> bytes:
        return b""

    def chunks(self, delta: Delta) -> bytes:
        if not delta.text and not delta.logprobs and delta.finish_reason is None:
            return b""
        if delta.logprobs is None and delta.finish_reason is None:
            text = msgspec.json.encode(delta.text)
            choice = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}' % (delta.index, text)
        else:
            choice = msgspec.json.encode(self._choice(delta.index, delta.text, delta, delta.logprobs))
        return self._frame.chunk(choice)

    def closing(self, usage: Usage) -> bytes:
        return self._frame.closing(usage)

    def progress(self, progress: PromptProgress) -> bytes:
        """What comes while the prompt is computed: a chunk without news of the first choice."""
        choice = b'{"index":0,"text":"","logprobs":null,"finish_reason":null}'
        return self._frame.progress(choice, progress)

    def failure(self, error: TrioletError) -> bytes:
        return self._frame.failure(error)

    def add(self, delta: Delta) -> None:
        self._choices.add(delta)

    def plain(self, usage: Usage) -> Response:
        return json_response(
            self._head.as_mapping("text_completion")
            | {
                "choices": [self._plain_choice(choice) for choice in self._choices.in_order()],
                "usage": usage.as_mapping(),
            }
        )

    def _plain_choice(self, folded: FoldedChoice) -> dict[str, Any]:
        choice = self._choice(folded.index, folded.text, folded.last, folded.logprobs)
        if self._has_prompt_logprobs:
            choice["prompt_logprobs"] = prompt_logprobs_of(folded, self._tokenizer)
        return choice

    def _choice(
        self, index: int, text: str, last: Delta | None, logprobs: list[Any] | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        if logprobs is not None:
            converter = self._logprobs.setdefault(index, CompletionLogprobs(self._tokenizer))
            choice["logprobs"] = converter.convert(logprobs)
        if last is not None and last.finish_reason is not None:
            choice |= {
                "finish_reason": last.finish_reason.value,
                "stop_reason": last.stop_reason,
                "seed": last.seed,
            }
        return choice


def add_completion_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the route to a blueprint."""

    @blueprint.post("/v1/completions")
    async def completions() -> Response:
        with counting_refusals(engine):
            body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), CompletionBody)
            params, prompts = body.params(), body.prompts()
            options = body.options(caller_identity(body.user), given_timeout(), given_rank())
            head = AnswerHead.create("cmpl-", check_model(engine, body.model), settings)
            require_serving(engine)
            if body.suffix:
                params, prompts = fill_in(body.suffix, params, prompts, engine.tokenizer)
        is_truncated = body.truncate_prompt_tokens is not None
        with body.blaming_its_own_fields():
            generation = await submit_all(
                [
                    partial(engine.submit, prompt, params, request_id=f"{head.id}-{index}", options=options)
                    for index, prompt in enumerate(prompts)
                ],
                num_choices=body.num_choices,
                amend=Echo(engine.tokenizer, is_truncated) if body.echo else None,
                is_prompt_only=body.is_prompt_only,
                blaming=body.blaming_its_own_fields,
                is_leaving=settings.is_leaving,
                params=params,
            )
        shape = CompletionShape(head, engine.tokenizer, body, lambda: generation.usage)
        return await answer(
            generation,
            shape,
            is_streamed=bool(body.stream),
            ping_interval=settings.ping_interval,
            tell_progress=shape.progress if body.return_progress else None,
        )
