"""A chat body and the model's ways put together: what is submitted, and how the answer is taken apart.

Knows nothing of HTTP or of the shape of answers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from triolet.errors import InvalidRequestError
from triolet.frontend.preparation import beside_the_loop, written_length
from triolet.request import RequestOptions
from triolet.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputs
from triolet.text.json_schema import SchemaError, parse_schema, prepare_schema
from triolet.text.parsed_text import AnswerParser, ChainedParser
from triolet.text.reasoning import ReasoningFormat
from triolet.text.tool_grammar import CallGrammar
from triolet.text.tool_parsers.tool_format import ToolFormat
from triolet.web.call_errors import CallErrors
from triolet.web.generation import Delta, Generation, submit_all
from triolet.web.schema import ChatBody
from triolet.web.serving_engine import MessageText, ServingEngine, TokenText
from triolet.web.tools import ToolUse

__all__ = ["AnswerReader", "ChatRequest", "blaming_sent_fields", "prepare_chat", "submit_chat"]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is submitted: ``rendering`` to the chat template. ``reader`` None leaves answers as they are.

    ``errors`` says of which field an error is where a grammar was made of several.
    """

    messages: list[dict[str, Any]]
    params: SamplingParams | BeamSearchParams
    rendering: dict[str, Any]
    reader: AnswerReader | None
    errors: CallErrors | None = None


@contextmanager
def blaming_sent_fields(body: ChatBody, chat: ChatRequest) -> Iterator[None]:
    """What the engine finds wrong is said of the fields that were sent."""
    with body.blaming_its_own_fields():
        try:
            yield
        except InvalidRequestError as error:
            if chat.errors is None:
                raise
            raise chat.errors.explain(error) from error.__cause__


class AnswerReader:
    """Takes the choices of an answer apart, each with a parser of its own, from their deltas."""

    def __init__(
        self,
        tools: ToolUse | None,
        tool_format: ToolFormat,
        reasoning_format: ReasoningFormat | None,
        *,
        is_reasoning_included: bool = True,
    ) -> None:
        self._tools = tools
        self._tool_format = tool_format
        self._reasoning_format = reasoning_format
        self._is_reasoning_included = is_reasoning_included
        self._parsers: dict[int, AnswerParser] = {}

    def __call__(self, delta: Delta) -> Delta:
        """The same delta, with its text told apart."""
        parser = self._parsers.get(delta.index)
        if parser is None:
            prompt = delta.prompt.text if delta.prompt is not None else None
            parser = self._parsers[delta.index] = self._new_parser(prompt or "")
        parsed = parser.add(delta.text)
        if delta.finish_reason is not None:
            parsed += parser.finish()
        return replace(
            delta,
            text=parsed.content,
            reasoning=parsed.reasoning if self._is_reasoning_included else "",
            tool_calls=parsed.tool_calls,
            has_called=parser.has_called,
        )

    def _new_parser(self, prompt: str) -> AnswerParser:
        reasoning = self._reasoning_format
        if self._tools is None and self._tool_format.reasoning is None:
            assert reasoning is not None, "or there would be nothing to read"
            return reasoning.new_parser(prompt)
        schemas = {} if self._tools is None else self._tools.parameters
        parser = self._tool_format.new_parser(schemas, _id_maker(self._tool_format))
        if reasoning is None or self._tool_format.reasoning is not None:
            return parser
        return ChainedParser(reasoning.new_parser(prompt), parser)


async def prepare_chat(
    engine: ServingEngine,
    body: ChatBody,
    params: SamplingParams | BeamSearchParams,
    messages: list[dict[str, Any]],
) -> ChatRequest:
    """The request for ``messages``, with what the body says of tools and of the template.

    Raises :class:`InvalidRequestError` naming the field. The model must be loaded.
    """
    tools, rendering = body.tool_use(), body.rendering()
    template = engine.chat_template
    if template is None or (
        tools is None and template.reasoning_format is None and template.tool_format.reasoning is None
    ):
        return ChatRequest(messages, params, rendering, None)
    if tools is not None:
        rendering["tools"] = tools.described
    markers = _markers(template, engine.tokenizer, has_tools=tools is not None)
    asked = params.structured_outputs if isinstance(params, SamplingParams) else None
    errors = None
    if tools is not None and (tools.is_enforced or asked is not None):
        grammar = await _grammar(template, messages, rendering, markers, tools)
        params, errors = _enforced(params, tools, grammar)
    elif isinstance(params, SamplingParams) and _is_json(asked) and template.reasoning_format is not None:
        grammar = await _grammar(template, messages, rendering, markers)
        params, errors = _after_reasoning(params, grammar)
    if markers and isinstance(params, SamplingParams):
        params = params.replace(skip_special_tokens=False)
    reader = AnswerReader(
        tools,
        template.tool_format,
        template.reasoning_format,
        is_reasoning_included=body.include_reasoning is not False,
    )
    return ChatRequest(messages, params, rendering, reader, errors)


async def submit_chat(
    engine: ServingEngine,
    body: ChatBody,
    chat: ChatRequest,
    *,
    request_id: str,
    options: RequestOptions,
    is_leaving: Callable[[], bool],
    blaming: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Generation:
    """The engine's work on a prepared chat, whose deltas are told apart.

    ``blaming`` is around what the engine finds wrong, where ``body`` was made of fields of other names.
    """

    @contextmanager
    def blaming_what_was_sent() -> Iterator[None]:
        with blaming(), blaming_sent_fields(body, chat):
            yield

    with blaming_what_was_sent():
        submit = partial(
            engine.submit_chat,
            chat.messages,
            chat.params,
            request_id=request_id,
            options=options,
            **chat.rendering,
        )
        return await submit_all(
            [submit],
            num_choices=body.num_choices,
            amend=chat.reader,
            blaming=blaming_what_was_sent,
            is_leaving=is_leaving,
            params=chat.params,
        )


def _enforced(
    params: SamplingParams | BeamSearchParams, tools: ToolUse, grammar: CallGrammar
) -> tuple[SamplingParams, CallErrors]:
    """The parameters with a grammar for calls, and what its errors mean."""
    if isinstance(params, BeamSearchParams):
        raise InvalidRequestError("tools: cannot be enforced with use_beam_search", param="tools")
    asked = params.structured_outputs
    if asked is not None and (tools.is_forced or not _is_json(asked)):
        raise InvalidRequestError(
            "tool_choice: not allowed together with this structured output; send one of them",
            param="tool_choice",
        )
    text = grammar.forced() if tools.is_forced else grammar.free(_answer_schema(asked))
    fields = dict(zip(grammar.rules, tools.fields, strict=True)) | {"answer": "structured_outputs.json"}
    errors = CallErrors(text, fields)
    return params.replace(structured_outputs=StructuredOutputs(grammar=text)), errors


def _after_reasoning(params: SamplingParams, grammar: CallGrammar) -> tuple[SamplingParams, CallErrors]:
    """The parameters with a format that holds once the model has reasoned, and what its errors mean."""
    text = grammar.free(_answer_schema(params.structured_outputs))
    errors = CallErrors(text, {"answer": "structured_outputs.json"}, whole="structured_outputs")
    return params.replace(structured_outputs=StructuredOutputs(grammar=text)), errors


async def _grammar(
    template: MessageText,
    messages: Sequence[Mapping[str, Any]],
    rendering: Mapping[str, Any],
    markers: frozenset[str],
    tools: ToolUse | None = None,
) -> CallGrammar:
    return CallGrammar(
        form=template.tool_format,
        schemas={} if tools is None else tools.schemas,
        is_parallel=tools is None or tools.is_parallel,
        special_tokens=markers,
        reasoning=template.reasoning_format,
        is_reasoning_open=await _is_reasoning_open(template, messages, rendering),
    )


def _is_json(asked: StructuredOutputs | None) -> bool:
    return asked is not None and (asked.json is not None or asked.json_object)


def _answer_schema(asked: StructuredOutputs | None) -> dict[str, Any] | None:
    """The schema of an answer that is no call. Raises :class:`InvalidRequestError` if there can be none."""
    if asked is None:
        return None
    if asked.json_object:
        return {"type": "object"}
    try:
        schema = parse_schema(asked.json)
        prepare_schema(schema)
    except SchemaError as error:
        param = "structured_outputs.json"
        raise InvalidRequestError(f"{param}: {error}", param=param) from None
    return {} if schema is True else dict(schema)


async def _is_reasoning_open(
    template: MessageText, messages: Sequence[Mapping[str, Any]], rendering: Mapping[str, Any]
) -> bool:
    """Whether the prompt leaves the model to reason first.

    Seen from the message that is continued, with which the prompt ends, or from a conversation of one word.
    """
    reasoning = template.reasoning_format
    if reasoning is None:
        return False
    if rendering["continue_final_message"]:
        return reasoning.is_open_after(messages[-1]["content"])
    render = partial(template.render, [{"role": "user", "content": "Hi"}], **rendering)
    return reasoning.is_open_after(await beside_the_loop(render, written_length(rendering)))


def _markers(template: MessageText, tokenizer: TokenText, *, has_tools: bool) -> frozenset[str]:
    """The special tokens by which the parts of an answer are told apart."""
    reasoning = template.reasoning_format
    wanted = set(template.tool_format.markers) if has_tools or template.tool_format.reasoning else set()
    wanted |= set() if reasoning is None else set(reasoning.markers)
    names = (tokenizer.id_to_token(token_id) for token_id in tokenizer.special_token_ids)
    return frozenset(name for name in names if name in wanted)


def _id_maker(form: ToolFormat) -> Callable[[], str]:
    return lambda: form.id_prefix + secrets.token_hex(form.id_length)[: form.id_length]
