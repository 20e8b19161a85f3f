"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from __future__ import annotations

from quart import Blueprint, Response, request

from triolet.web.answer import AnswerHead, answer, check_model, json_response
from triolet.web.anthropic.message_shape import MessageShape
from triolet.web.anthropic.schema import CountTokensBody, MessagesBody
from triolet.web.anthropic.translation import chat_body, naming_sent_fields
from triolet.web.auth import caller_identity
from triolet.web.body import read_body
from triolet.web.chat_request import prepare_chat, submit_chat
from triolet.web.generation import counting_refusals, require_serving
from triolet.web.headers import given_rank, given_timeout
from triolet.web.messages import check_num_messages
from triolet.web.schema import decode_body
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings
from triolet.web.tokens_api import rendered_prompt

__all__ = ["add_message_routes"]


def add_message_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the routes to a blueprint."""

    @blueprint.post("/v1/messages")
    async def messages() -> Response:
        with counting_refusals(engine), naming_sent_fields():
            body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), MessagesBody)
            check_num_messages(body.messages, settings.max_num_messages)
            head = AnswerHead.create("msg_", check_model(engine, body.model), settings)
            require_serving(engine)
            chat_of_body = chat_body(body, engine.max_model_len)
            with chat_of_body.blaming_its_own_fields():
                options = chat_of_body.options(
                    caller_identity(chat_of_body.user), given_timeout(), given_rank()
                )
                params, chat_messages = chat_of_body.params(), chat_of_body.message_mappings()
                chat = await prepare_chat(engine, chat_of_body, params, chat_messages)
        generation = await submit_chat(
            engine,
            chat_of_body,
            chat,
            request_id=head.id,
            options=options,
            is_leaving=settings.is_leaving,
            blaming=naming_sent_fields,
        )
        has_limit = chat_of_body.max_tokens is not None
        shape = MessageShape(head.id, head.model, generation, has_limit=has_limit)
        return await answer(
            generation, shape, is_streamed=bool(body.stream), ping_interval=settings.ping_interval
        )

    @blueprint.post("/v1/messages/count_tokens")
    async def count_tokens() -> Response:
        with naming_sent_fields():
            body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), CountTokensBody)
            check_num_messages(body.messages, settings.max_num_messages)
            check_model(engine, body.model)
            require_serving(engine)
            chat_of_body = chat_body(body, engine.max_model_len)
            with chat_of_body.blaming_its_own_fields():
                params, chat_messages = chat_of_body.params(), chat_of_body.message_mappings()
                chat = await prepare_chat(engine, chat_of_body, params, chat_messages)
            prompt = await rendered_prompt(engine, chat)
        return json_response({"input_tokens": prompt["count"]})
