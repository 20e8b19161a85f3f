"""The routes as a blueprint for any Quart application, and the application of the server itself.

The same handlers run on asyncio (Quart) and on Trio (QuartTrio).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from quart import Blueprint, Quart, Response
from quart_trio import QuartTrio

from triolet.args import Backend, ServeArgs
from triolet.statistics import EngineState
from triolet.web.access_log import AccessLog
from triolet.web.admission import Admission
from triolet.web.answer import finish_response
from triolet.web.anthropic.messages_api import add_message_routes
from triolet.web.auth import ADMIN_ENVIRONMENT_VARIABLE, key_check, make_key_ring, resolve_api_key
from triolet.web.chat import add_chat_routes
from triolet.web.completions import add_completion_routes
from triolet.web.control_api import CONTROL_ENDPOINTS, add_control_routes
from triolet.web.cors import Cors
from triolet.web.direct_handling import NoSessions, direct
from triolet.web.document_api import add_document_routes
from triolet.web.early_refusal import EarlyRefusalMiddleware, EarlyRefusals
from triolet.web.errors import install_error_handlers
from triolet.web.farewells import Farewells
from triolet.web.middleware import ASGIApp, FinalSendShield
from triolet.web.models_api import add_model_routes
from triolet.web.operations import add_operation_routes
from triolet.web.page_api import add_page_routes
from triolet.web.peers import NoPeers, Peers
from triolet.web.request_scope import RequestScopes
from triolet.web.responses import add_response_routes
from triolet.web.serving_engine import ServingEngine
from triolet.web.settings import WebSettings
from triolet.web.tokens_api import add_token_routes
from triolet.web.unserved_api import add_unserved_routes

__all__ = ["blueprint", "create_app", "unread_refusals"]

_EXTENSION = "triolet.refusals"
NUM_FUNCTIONS = 256
LEAVING = frozenset({EngineState.DRAINING, EngineState.STOPPED})


def blueprint(
    engine: ServingEngine, settings: WebSettings | None = None, *, name: str = "triolet"
) -> Blueprint:
    """All routes over one engine: ``app.register_blueprint(blueprint(engine), url_prefix="/llm")``.

    Errors of these routes are answered in the OpenAI shape; those of the rest of the application are not
    touched. Register several under different names to serve several engines.
    """
    settings = _leaving_with(engine, settings or WebSettings())
    routes = Blueprint(name, __name__)
    admission = Admission()
    keys = make_key_ring(settings)
    # The host application gets the middleware with the routes, whatever else is put around it.
    refusals = partial(EarlyRefusals, engine, keys, is_leaving=settings.is_leaving)
    routes.record_once(lambda state: _put_around(state.app, refusals(prefix=state.url_prefix or "")))
    routes.before_request(key_check(keys, CONTROL_ENDPOINTS))
    routes.before_request(admission.admit)
    add_completion_routes(routes, engine, settings)
    add_chat_routes(routes, engine, settings)
    add_message_routes(routes, engine, settings)
    add_response_routes(routes, engine, settings)
    add_model_routes(routes, engine, settings)
    add_token_routes(routes, engine, settings)
    add_operation_routes(routes, engine, settings)
    add_control_routes(routes, engine, settings, admission)
    add_document_routes(routes, has_page=settings.has_page)
    if settings.has_page:
        add_page_routes(routes)
    add_unserved_routes(routes)
    install_error_handlers(routes)
    routes.after_request(finish_response)
    return routes


def create_app(
    engine: ServingEngine,
    args: ServeArgs | None = None,
    *,
    is_leaving: Callable[[], bool] = lambda: False,
    peers: Peers | None = None,
    farewells: Farewells | None = None,
) -> Quart:
    """The server's application, of the class that fits ``args.backend``. It does not run the engine."""
    args = args or ServeArgs()
    settings = WebSettings(
        api_key=resolve_api_key(args.api_key),
        admin_api_key=resolve_api_key(args.admin_api_key, ADMIN_ENVIRONMENT_VARIABLE),
        api_key_file=args.api_key_file,
        has_page=args.page,
        max_body_bytes=args.max_body_bytes,
        max_num_messages=args.max_num_messages,
        response_store_size=args.response_store_size,
        response_store_bytes=args.response_store_bytes,
        ping_interval=args.ping_interval,
        is_leaving=is_leaving,
        peers=peers or NoPeers(),
        farewells=farewells or Farewells(),
    )
    app = _application(args.backend)
    # Bodies are bounded where they are read; the framework's time-out would cut long streams.
    app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
    # Or `//` in a path would be answered with a redirection, in HTML, to whatever the Host header says.
    app.url_map.merge_slashes = False
    app.register_blueprint(blueprint(engine, settings))
    install_error_handlers(app)

    @app.after_request
    async def finish(response: Response) -> Response:
        if settings.is_leaving() or engine.state in LEAVING:
            response.headers["Connection"] = "close"
        return await finish_response(response)

    app.asgi_app = _with_middleware(app.asgi_app, args)  # type: ignore[assignment,method-assign,arg-type]
    return app


def unread_refusals(app: Quart, args: ServeArgs) -> EarlyRefusals | None:
    """What a server may refuse before its application has seen it; None where that sees every request."""
    if args.cors_origin or args.access_log != "off":
        return None
    found = app.extensions[_EXTENSION]
    assert isinstance(found, EarlyRefusals), "the blueprint puts it there"
    return found


def _leaving_with(engine: ServingEngine, settings: WebSettings) -> WebSettings:
    """Settings of which the server is leaving also when its engine has stopped, whoever has stopped it."""
    is_leaving = settings.is_leaving
    return replace(settings, is_leaving=lambda: is_leaving() or engine.state is EngineState.STOPPED)


def _with_middleware(app: ASGIApp, args: ServeArgs) -> ASGIApp:
    """What goes around an application, the inner first."""
    if args.cors_origin:
        app = Cors(app, args.cors_origin)
    if args.access_log != "off":
        app = AccessLog(app, args.access_log)
    return FinalSendShield(app)


def _put_around(app: Any, refusals: EarlyRefusals) -> None:
    app.extensions[_EXTENSION] = refusals
    app.asgi_app = RequestScopes(EarlyRefusalMiddleware(app.asgi_app, refusals))


def _application(backend: Backend) -> Quart:
    kind = QuartTrio if backend == "trio" else Quart
    app = kind(__name__, static_folder=None)
    app.asgi_http_class = direct(app.asgi_http_class)
    app.session_interface = NoSessions()  # type: ignore[assignment]
    # Else it is found out for each request again which of the functions called for it are coroutines.
    app.ensure_async = lru_cache(NUM_FUNCTIONS)(app.ensure_async)  # type: ignore[method-assign]
    return app
