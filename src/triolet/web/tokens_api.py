"""``/tokenize``, ``/detokenize`` and ``/v1/chat/completions/render``: what the model would read.

The first two have the fields of vLLM. Knows nothing of generation.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from quart import Blueprint, Response, request

from triolet.errors import InvalidRequestError
from triolet.frontend.preparation import beside_the_loop, written_length
from triolet.web.answer import check_model, json_response
from triolet.web.body import decode_json, read_body
from triolet.web.chat_request import ChatRequest, prepare_chat
from triolet.web.generation import require_serving
from triolet.web.messages import Message, check_num_messages
from triolet.web.schema import ChatBody, TokenId, decode_body
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings

__all__ = ["DetokenizeBody", "TokenizeBody", "add_token_routes", "rendered_prompt"]

T = TypeVar("T")


class TokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /tokenize``: either ``prompt`` or ``messages``. None is "not given"."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None

    @property
    def is_wrapped(self) -> bool:
        """Whether the model's special tokens go around it; a rendered template already has them."""
        return self.prompt is not None if self.add_special_tokens is None else self.add_special_tokens

    def check(self) -> None:
        """Raises :class:`InvalidRequestError` unless there is one of the two, with its own fields only."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("prompt: send either prompt or messages", param="prompt")
        if self.messages is None and self.add_generation_prompt is not None:
            raise InvalidRequestError(
                "add_generation_prompt: allowed only with messages", param="add_generation_prompt"
            )


class DetokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /detokenize``."""

    tokens: list[TokenId]
    model: str | None = None


def add_token_routes(blueprint: Blueprint, engine: ServingEngine, settings: WebSettings) -> None:
    """Add the routes to a blueprint."""

    async def read(kind: type[T]) -> T:
        return decode_json(await read_body(request, max_bytes=settings.max_body_bytes), kind)

    @blueprint.post("/tokenize")
    async def tokenize() -> Response:
        body = await read(TokenizeBody)
        body.check()
        check_num_messages(body.messages or (), settings.max_num_messages)
        check_model(engine, body.model)
        require_serving(engine)
        messages = [message.as_mapping(index) for index, message in enumerate(body.messages or ())]
        length = len(body.prompt or "") + written_length(messages)
        return json_response(await beside_the_loop(partial(_tokenize, engine, body, messages), length))

    @blueprint.post("/detokenize")
    async def detokenize() -> Response:
        body = await read(DetokenizeBody)
        check_model(engine, body.model)
        require_serving(engine)
        return json_response(await beside_the_loop(partial(_detokenize, engine, body), len(body.tokens)))

    @blueprint.post("/v1/chat/completions/render")
    async def render() -> Response:
        """The prompt that the same body would generate from; its other fields are checked, no more."""
        body = decode_body(await read_body(request, max_bytes=settings.max_body_bytes), ChatBody)
        check_num_messages(body.messages, settings.max_num_messages)
        with body.blaming_its_own_fields():
            params = body.params()
            body.options("")
        messages = body.message_mappings()
        check_model(engine, body.model)
        require_serving(engine)
        with body.blaming_its_own_fields():
            chat = await prepare_chat(engine, body, params, messages)
        return json_response(await rendered_prompt(engine, chat))


def _tokenize(engine: ServingEngine, body: TokenizeBody, messages: list[dict[str, Any]]) -> dict[str, Any]:
    text, param = body.prompt, "prompt"
    if text is None:
        is_prompted = body.add_generation_prompt is not False
        text, param = _render(engine, messages, add_generation_prompt=is_prompted), "messages"
    token_ids = _encode(engine, text, param, add_special_tokens=body.is_wrapped)
    strings = None
    if body.return_token_strs:
        strings = [engine.tokenizer.id_to_token(token_id) for token_id in token_ids]
    return _counted(engine, token_ids) | {"tokens": token_ids, "token_strs": strings}


def _detokenize(engine: ServingEngine, body: DetokenizeBody) -> dict[str, Any]:
    size = engine.tokenizer.vocab_size
    for index, token_id in enumerate(body.tokens):
        if token_id >= size:
            param = f"tokens[{index}]"
            raise InvalidRequestError(
                f"{param}: {token_id} is not in the vocabulary [0, {size})", param=param
            )
    return {"prompt": engine.tokenizer.decode(body.tokens, skip_special_tokens=False)}


def _prompt(engine: ServingEngine, chat: ChatRequest) -> dict[str, Any]:
    text = _render(engine, chat.messages, **chat.rendering)
    token_ids = _encode(engine, text, "messages", add_special_tokens=False)
    return {"prompt": text, "token_ids": token_ids} | _counted(engine, token_ids)


async def rendered_prompt(engine: ServingEngine, chat: ChatRequest) -> dict[str, Any]:
    """The prompt of a prepared chat: ``prompt``, ``token_ids``, and how many these are."""
    return await beside_the_loop(
        partial(_prompt, engine, chat), written_length(chat.messages, chat.rendering)
    )


def _render(engine: ServingEngine, messages: list[dict[str, Any]], **rendering: Any) -> str:
    if engine.chat_template is None:
        raise InvalidRequestError(
            "messages: this model has no chat template; start the server with --chat-template, or send a "
            "prompt",
            param="messages",
        )
    return engine.chat_template.render(messages, **rendering)


def _encode(engine: ServingEngine, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
    try:
        return engine.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{param}: {error.message}", param=param) from error


def _counted(engine: ServingEngine, token_ids: list[int]) -> dict[str, Any]:
    return {"count": len(token_ids), "max_model_len": engine.max_model_len}
