"""Every error as an object of the API it belongs to, with its HTTP status; nothing ever answers in HTML.

It is OpenAI's, but for the routes of the Messages API. Knows :mod:`triolet.errors` and Quart's exceptions,
not the routes that raise them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import msgspec
from quart import Blueprint, Quart, Response, current_app, request
from werkzeug.exceptions import (
    HTTPException,
    MethodNotAllowed,
    NotFound,
    RequestEntityTooLarge,
    RequestTimeout,
)

from triolet.errors import (
    AuthenticationError,
    EngineDeadError,
    OverloadedError,
    RequestError,
    RequestTooLargeError,
    TrioletError,
)
from triolet.web.anthropic.errors import message_error_body
from triolet.web.nearest_route import nearest_route
from triolet.web.request_scope import request_name

__all__ = [
    "RequestAbortedError",
    "error_body",
    "error_response",
    "install_error_handlers",
    "is_messages_route",
    "refuse_late",
]

logger = logging.getLogger("triolet.web")

RETRY_AFTER_DEAD_SECONDS = 5


class RequestAbortedError(TrioletError):
    """The server ended the request before the model did, because it is shutting down."""

    status = 503
    error_type = "server_error"
    code = "request_aborted"


def error_body(error: TrioletError) -> dict[str, Any]:
    """The OpenAI error object of an error."""
    return {
        "error": {
            "message": error.message,
            "type": error.error_type,
            "param": error.param,
            "code": error.code,
        }
    }


def is_messages_route() -> bool:
    """Whether the request is one of the Messages API, whether such a route exists or not."""
    return "/v1/messages" in request.path


def error_response(error: TrioletError) -> Response:
    """The whole answer: status, JSON body and the headers that go with the status."""
    body = message_error_body(error, request_name()) if is_messages_route() else error_body(error)
    response = Response(msgspec.json.encode(body), status=error.status, content_type="application/json")
    if isinstance(error, OverloadedError):
        response.headers["Retry-After"] = str(error.retry_after)
    elif isinstance(error, EngineDeadError | RequestAbortedError):
        response.headers["Retry-After"] = str(RETRY_AFTER_DEAD_SECONDS)
    if isinstance(error, AuthenticationError):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def refuse_late(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
    """An ASGI application that has ended: what comes too late for any other answer."""
    error = RequestAbortedError("The server is shutting down, and takes no more requests.")
    headers = {
        "content-type": "application/json", "connection": "close", "retry-after": RETRY_AFTER_DEAD_SECONDS,
    }  # fmt: skip
    plain = [(name.encode(), str(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": plain})
    await send({"type": "http.response.body", "body": msgspec.json.encode(error_body(error))})


class _HTTPError(TrioletError):
    """An error that the web framework found."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status  # type: ignore[misc]
        self.error_type = "invalid_request_error" if status < 500 else "server_error"  # type: ignore[misc]


async def _on_http_exception(error: HTTPException) -> Response:
    if isinstance(error, RequestEntityTooLarge):
        return error_response(RequestTooLargeError("The request body is larger than the server accepts."))
    status = error.code or 500
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error"
    response = error_response(_HTTPError(_explain(error, phrase), status=status))
    if isinstance(error, MethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
    return response


def _explain(error: HTTPException, phrase: str) -> str:
    if isinstance(error, NotFound):
        return _explain_not_found()
    if isinstance(error, RequestTimeout):
        return "The request body did not arrive in time."
    if isinstance(error, MethodNotAllowed):
        methods = sorted(set(error.valid_methods or ()) - {"HEAD", "OPTIONS"})
        return f"{request.path[:200]} does not take {request.method}; use {' or '.join(methods)}."
    return f"{phrase}: {error.description}" if error.description else phrase


def _explain_not_found() -> str:
    routes = {rule.rule for rule in current_app.url_map.iter_rules() if not rule.arguments}
    meant = nearest_route(request.path, routes)
    path = repr(request.path[:200])
    return f"There is no route {path}" + (f"; did you mean {meant}?" if meant else ".")


async def _on_triolet_error(error: TrioletError) -> Response:
    # Of an engine that dies whoever watches it tells once; all its requests would tell it again.
    if error.status >= 500 and not isinstance(error, RequestError | RequestAbortedError | EngineDeadError):
        logger.error("request failed: %s", error.message)
    return error_response(error)


async def _on_unexpected(error: Exception) -> Response:
    logger.error("unexpected error while answering a request", exc_info=error)
    return error_response(_HTTPError("Internal server error; its cause is in the server's log.", status=500))


def install_error_handlers(scaffold: Quart | Blueprint) -> None:
    """Make an application, or the routes of a blueprint alone, answer every error in the OpenAI shape."""
    scaffold.register_error_handler(TrioletError, _on_triolet_error)
    scaffold.register_error_handler(HTTPException, _on_http_exception)
    scaffold.register_error_handler(Exception, _on_unexpected)
