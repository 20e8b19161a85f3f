"""``/v1/responses``: the routes. A response is the answer of a chat, written as items, and may be kept.

Knows neither the shape of a response nor how a conversation becomes messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from triolet.errors import InvalidRequestError
from triolet.web.answer import AnswerHead, answer, check_model, json_response
from triolet.web.auth import caller_identity, caller_key
from triolet.web.body import read_body
from triolet.web.chat_request import ChatRequest, prepare_chat, submit_chat
from triolet.web.generation import Generation, counting_refusals, require_serving
from triolet.web.headers import given_rank, given_timeout
from triolet.web.logprobs import ChatLogprobs
from triolet.web.messages import check_num_messages
from triolet.web.request_scope import request_scope
from triolet.web.responses_background import BackgroundResponses, LogReader
from triolet.web.responses_conversation import PREFIX, Conversation, read_conversation
from triolet.web.responses_directory import ResponseDirectory, Running
from triolet.web.responses_input import Item, messages_of
from triolet.web.responses_output import OutputItems
from triolet.web.responses_schema import ResponsesBody, blaming_response_fields
from triolet.web.responses_shape import ResponseShape, response_head
from triolet.web.responses_store import StoredResponse
from triolet.web.responses_truncation import Truncation
from triolet.web.schema import decode_body
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings
from triolet.web.sse import stream_response
from triolet.web.tokens_api import rendered_prompt

__all__ = ["add_response_routes"]

LONGEST_PAGE = 100
_LIMIT = re.compile("[0-9]{1,3}")
_NUMBER = re.compile("[0-9]{1,9}")


def add_response_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the routes to a blueprint."""
    directory = ResponseDirectory(engine, settings)
    truncation = Truncation(engine)
    background = BackgroundResponses(directory.logs, settings.response_store_size)

    @blueprint.post("/v1/responses")
    async def create_response() -> Response:
        with counting_refusals(engine):
            body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), ResponsesBody)
            is_stored = _is_stored(body, directory)
            if body.background:
                request_scope().exits.callback(background.enter())
            head = AnswerHead.create(PREFIX, check_model(engine, body.model), settings)
            require_serving(engine)
            conversation = await read_conversation(body, head.id, directory, caller_key())
        generation = await _submit(engine, truncation, body, conversation.items, head.id, settings)
        is_background = bool(body.background)
        shape = ResponseShape(
            response_head(head, body, is_stored=is_stored),
            _output_items(engine, body, conversation),
            settings.clock,
            on_end=directory.keep,
            is_queued=is_background,
        )
        if is_background and body.stream:
            directory.logs.open(head.id)
        running = Running(
            caller_key(), is_stored, generation, conversation.items, shape.response, is_background
        )
        request_scope().exits.callback(directory.begin(head.id, running))
        if is_background:
            background.start(head.id, generation, shape)
            if not body.stream:
                return json_response(shape.response())
            return await _event_stream(directory, head.id, 0, settings.ping_interval)
        return await answer(
            generation, shape, is_streamed=bool(body.stream), ping_interval=settings.ping_interval
        )

    @blueprint.post("/v1/responses/input_tokens")
    async def count_input_tokens() -> Response:
        body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), ResponsesBody)
        check_model(engine, body.model)
        require_serving(engine)
        conversation = await read_conversation(body, PREFIX, directory, caller_key())
        chat = await _chat(engine, truncation, body, conversation.items, settings)
        prompt = await rendered_prompt(engine, chat)
        return json_response({"object": "response.input_tokens", "input_tokens": prompt["count"]})

    _add_stored_response_routes(blueprint, directory, settings.ping_interval)


def _add_stored_response_routes(
    blueprint: Blueprint, directory: ResponseDirectory, ping_interval: float
) -> None:
    @blueprint.get("/v1/responses/<response_id>")
    async def retrieve_response(response_id: str) -> Response:
        """A response as it is now, or its events, where they are kept."""
        start = _first_event()
        found = await directory.find(response_id, caller_key(), param="response_id")
        if start is None:
            return _told(found)
        return await _event_stream(directory, response_id, start, ping_interval)

    @blueprint.delete("/v1/responses/<response_id>")
    async def delete_response(response_id: str) -> Response:
        await directory.delete(response_id, caller_key())
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @blueprint.post("/v1/responses/<response_id>/cancel")
    async def cancel_response(response_id: str) -> Response:
        """End a response that is being written; its own answer then ends with the status ``cancelled``."""
        return _told(await directory.cancel(response_id, caller_key()))

    @blueprint.get("/v1/responses/<response_id>/input_items")
    async def list_input_items(response_id: str) -> Response:
        found = await directory.find(response_id, caller_key(), param="response_id")
        return json_response(_page(msgspec.json.decode(found.items)))


async def _submit(
    engine: ServingEngine,
    truncation: Truncation,
    body: ResponsesBody,
    items: Sequence[Item],
    response_id: str,
    settings: WebSettings,
) -> Generation:
    """The engine's work on the chat that the response answers."""
    with counting_refusals(engine):
        options = body.options(caller_identity(body.user), given_timeout(), given_rank())
        chat = await _chat(engine, truncation, body, items, settings)
    return await submit_chat(
        engine,
        body.as_chat(),
        chat,
        request_id=response_id,
        options=options,
        is_leaving=settings.is_leaving,
        blaming=blaming_response_fields,
    )


async def _chat(
    engine: ServingEngine,
    truncation: Truncation,
    body: ResponsesBody,
    items: Sequence[Item],
    settings: WebSettings,
) -> ChatRequest:
    """The chat that the response answers. Raises :class:`InvalidRequestError` naming what was sent."""
    chat_body = body.as_chat()
    with blaming_response_fields(), chat_body.blaming_its_own_fields():
        check_num_messages(items, settings.max_num_messages)
        chat = await prepare_chat(
            engine, chat_body, chat_body.params(), messages_of(body.instructions, items)
        )
        return await truncation.shorten(chat, body.max_output_tokens) if body.truncation == "auto" else chat


async def _event_stream(
    directory: ResponseDirectory, response_id: str, start: int, ping_interval: float
) -> Response:
    read = await directory.events(response_id, caller_key())
    if read is None:
        raise InvalidRequestError(
            "stream: the events of this response are not kept: only those of one that was asked for with "
            "background and stream are, for a while; retrieve it without",
            param="stream",
        )
    return stream_response(LogReader(read, start, ping_interval=ping_interval))


def _output_items(engine: ServingEngine, body: ResponsesBody, conversation: Conversation) -> OutputItems:
    convert = ChatLogprobs(engine.tokenizer).positions if body.has_logprobs else None
    return OutputItems(conversation.new_id, convert)


def _is_stored(body: ResponsesBody, directory: ResponseDirectory) -> bool:
    """Whether the response is to be kept. Raises :class:`InvalidRequestError` where nothing is."""
    if body.store and directory.is_off:
        raise InvalidRequestError(
            "store: this server keeps no responses (--response-store-size); send store: false, and the whole "
            "conversation as input",
            param="store",
        )
    if body.background and (body.store is False or directory.is_off):
        raise InvalidRequestError(
            "background: needs a response that is stored, or it could never be retrieved"
            + (
                "; this server keeps none (--response-store-size)"
                if directory.is_off
                else "; leave out store"
            ),
            param="background",
        )
    return body.store is not False and not directory.is_off


def _first_event() -> int | None:
    """The number of the first event that the parameters ask for; None where they ask for no stream."""
    stream, after = (request.args.get(name) for name in ("stream", "starting_after"))
    if stream not in (None, "true", "false"):
        raise InvalidRequestError(f"stream: must be true or false, got {stream!r:.60}", param="stream")
    if after is not None and (stream != "true" or not _NUMBER.fullmatch(after)):
        raise InvalidRequestError(
            f"starting_after: must be the number of an event, with stream=true, got {after!r:.60}",
            param="starting_after",
        )
    if stream != "true":
        return None
    return 0 if after is None else int(after) + 1


def _told(stored: StoredResponse) -> Response:
    return Response(stored.response, content_type="application/json")


def _page(items: list[Item]) -> dict[str, Any]:
    """The part of a list that the parameters ask for: from the end unless ``order`` says otherwise."""
    order, after, limit = (request.args.get(name) for name in ("order", "after", "limit"))
    if order not in (None, "asc", "desc"):
        raise InvalidRequestError(f"order: must be asc or desc, got {order!r:.60}", param="order")
    size = 20 if limit is None else int(limit) if _LIMIT.fullmatch(limit) else 0
    if not 1 <= size <= LONGEST_PAGE:
        raise InvalidRequestError(
            f"limit: must be an integer in [1, {LONGEST_PAGE}], got {limit!r:.60}", param="limit"
        )
    items = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    if after is not None:
        if after not in ids:
            raise InvalidRequestError(f"after: there is no item {after!r:.100}", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:size]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }
