"""The server: HTTP, engine and signals as siblings in one nursery, from the first connection to the end.

HTTP answers before the model is loaded. The first signal drains: unready, then no new work, then what is
under way gets its time, then the rest is told; a second signal ends the process at once. An engine that dies
takes the server with it, after every open request has had its answer.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shlex
import socket
from collections.abc import Callable
from typing import Any

import anyio
from anyio.abc import TaskStatus

from triolet.args import ServeArgs
from triolet.cluster.reception import check_ports
from triolet.core.signals import SignalOrders
from triolet.errors import UsageError
from triolet.statistics import EngineState
from triolet.web.app import create_app, unread_refusals
from triolet.web.auth import key_option
from triolet.web.console import write_line
from triolet.web.errors import refuse_late
from triolet.web.farewells import Farewells
from triolet.web.http_server import GRACEFUL_SECONDS, serve_http
from triolet.web.listener import address_url, listen
from triolet.web.middleware import OpenRequests
from triolet.web.peers import Peers
from triolet.web.serving_engine import ServingEngine
from triolet.web.tls import open_tls
from triolet.web.tracing import open_tracing

__all__ = ["Server", "serve", "settle_memory"]

logger = logging.getLogger("triolet.web")

FLUSH_SECONDS = 2.5
"""How long the last events of requests that were ended may take to be written, and whoever polls to ask."""
ENGINE_STOP_SECONDS = 10.0
GC_THRESHOLD = 10_000
"""New objects before the collector looks for cycles: requests make many, and few cycles."""


async def serve(args: ServeArgs) -> int:
    """Serve until a signal or the death of the engine; the exit code: 0, 1 if the engine died, or 2 if an
    option turned out to be wrong while it loaded.

    Raises :class:`UsageError` if the address or a certificate cannot be used. Runs in the main thread
    only, where signals arrive.
    """
    from triolet.engine import Engine

    check_ports(args.launch_shape())
    listener = listen(args)
    try:
        return await Server(args, Engine(args), listener, settle=settle_memory).run()
    finally:
        if args.uds is not None:
            args.uds.unlink(missing_ok=True)


def settle_memory() -> None:
    """Take all there is out of the collector's sight, once what stays for good has been loaded.

    Else it looks at every module, class and weight again and again, and everything waits meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


class Server:
    """One run of the server. ``announce`` gets the lines for the user once the server is ready.

    ``settle`` is called before that, where the process is the server's own.

    ``exit_now`` ends the process when a second signal comes, and when connections or the engine cannot be
    closed in time. ``obeys_signals``: not in a process that somebody else tells to end. ``peers`` are the
    other servers of the same engines.
    """

    def __init__(
        self,
        args: ServeArgs,
        engine: ServingEngine,
        listener: socket.socket,
        *,
        announce: Callable[[str], None] | None = None,
        exit_now: Callable[[int], Any] = os._exit,
        obeys_signals: bool = True,
        peers: Peers | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._args = args
        self._settle = settle
        self._engine = engine
        self._listener = listener
        self._tls = open_tls(args)
        self._url = address_url(listener, "http" if self._tls is None else "https")
        self._announce = announce or write_line
        self._exit_now = exit_now
        self._obeys_signals = obeys_signals
        self._is_leaving = False
        self._farewells = Farewells()
        app = create_app(
            engine, args, is_leaving=lambda: self._is_leaving, peers=peers, farewells=self._farewells
        )
        self._tracing = open_tracing(args)
        self._refusals = unread_refusals(app, args) if self._tracing is None else None
        if self._tracing is not None:
            traced = self._tracing.around(app.asgi_app, lambda: self._requests.is_closed)  # type: ignore[arg-type]
            app.asgi_app = traced  # type: ignore[assignment,method-assign]
        self._requests = OpenRequests(app.asgi_app, refuse_late)  # type: ignore[arg-type]
        app.asgi_app = self._requests  # type: ignore[assignment,method-assign]
        self._app = app
        self._must_close_http = anyio.Event()
        self._is_http_closed = anyio.Event()
        self._is_engine_down = anyio.Event()
        self._is_done = anyio.Event()
        self._failure: Exception | None = None

    @property
    def is_leaving(self) -> bool:
        """Whether the server is on its way out."""
        return self._is_leaving

    @property
    def num_open_requests(self) -> int:
        """HTTP requests being answered."""
        return self._requests.num_open

    @property
    def failure(self) -> Exception | None:
        """What the engine has failed with."""
        return self._failure

    @property
    def _exit_code(self) -> int:
        if self._failure is None:
            return 0
        # An option that only the model or the memory shows to be wrong is wrong all the same.
        return 2 if isinstance(self._failure, UsageError) else 1

    async def run(self) -> int:
        """The exit code. Whatever happens, no task, request or socket is left behind."""
        async with anyio.create_task_group() as group:
            if self._obeys_signals:
                await group.start(self._signal_orders().obey)
            group.start_soon(self._run_http)
            group.start_soon(self._run_engine)
            await self._is_done.wait()
            group.cancel_scope.cancel()
        if self._failure is not None:
            logger.critical("the server has stopped: %s", _cause(self._failure))
        return self._exit_code

    async def drain(self, seconds: float | None = None, lead_seconds: float | None = None) -> None:
        """Leave in phases, as the first signal asks for.

        ``seconds`` instead of ``--shutdown-timeout``, ``lead_seconds`` instead of ``--drain-lead-time``.
        """
        logger.info("draining: /ready is off")
        self._is_leaving = True
        await anyio.sleep(self._args.drain_lead_time if lead_seconds is None else lead_seconds)
        self._engine.begin_drain()
        logger.info("draining: no new work; requests under way: %d", self._requests.num_open)
        seconds = self._args.shutdown_timeout if seconds is None else seconds
        if self._engine.state is EngineState.DRAINING:  # else it has no requests
            self._engine.end_within(seconds)
        with anyio.move_on_after(seconds):
            await self._engine.wait_idle()
        self._engine.abort_all("the server is shutting down")
        await self._close()

    async def _close(self) -> None:
        """Close HTTP, then the engine; what does not close in time is left to the end of the process."""
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._farewells.wait_told()
            await self._requests.wait_idle()
        self._requests.disconnect_all()
        self._must_close_http.set()
        with anyio.move_on_after(GRACEFUL_SECONDS + 1.5):
            await self._is_http_closed.wait()
        self._engine.stop()
        if self._tracing is not None:
            await self._tracing.close()
        with anyio.move_on_after(ENGINE_STOP_SECONDS):
            await self._is_engine_down.wait()
        if not (self._is_http_closed.is_set() and self._is_engine_down.is_set()):
            logger.warning("connections or the engine could not be closed in time")
            self._exit_now(self._exit_code)
        self._is_done.set()

    async def _run_engine(self) -> None:
        try:
            await self._engine.run(task_status=_WhenReady(self._announce_ready))
        except Exception as error:
            self._failure = error
        finally:
            self._is_engine_down.set()
        if not self._is_leaving:
            self._is_leaving = True
            await self._close()

    async def _run_http(self) -> None:
        try:
            await serve_http(
                self._app, self._listener, self._args.backend, self._must_close_http.wait,
                tls=None if self._tls is None else self._tls.context, refusals=self._refusals,
            )  # fmt: skip
        finally:
            self._is_http_closed.set()

    def _signal_orders(self) -> SignalOrders:
        """A hang-up reads certificates again, and replaces engine processes where there are some."""

        async def leave(signal_name: str) -> None:
            await self.drain()

        async def restart() -> None:
            await self._engine.restart_ranks(seconds=self._args.shutdown_timeout)

        return SignalOrders(
            leave=leave,
            restart=None if self._args.launch_shape().is_one_process else restart,
            reload=None if self._tls is None else self._tls.reload,
            is_leaving=lambda: self._is_leaving,
            exit_now=self._exit_now,
        )

    def _announce_ready(self) -> None:
        self._settle()
        model = self._engine.model_names[0]
        curl_option = "" if self._args.uds is None else f"--unix-socket {shlex.quote(str(self._args.uds))} "
        if self._tls is not None:
            curl_option = "--insecure "  # the certificate is for a name, not for the address shown
        place = self._url if self._args.uds is None else f"the socket {self._args.uds}, {self._url}"
        page = "a page for browsers; " if self._args.page and self._args.uds is None else ""
        self._announce(f"{model} is ready at {place} ({page}OpenAI base URL: {self._url}/v1). Try it:")
        key = key_option(self._args.api_key, self._args.api_key_file)
        self._announce(_curl_command(curl_option + self._url, model, key))


class _WhenReady(TaskStatus[None]):
    """Calls back when the engine says that it is ready."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def started(self, value: None = None) -> None:
        self._callback()


def _curl_command(url: str, model: str, key: str) -> str:
    """A request to paste into a shell."""
    message = {"role": "user", "content": "Hello!"}
    # The surest answer, and a short one: a small model that guesses may go on for as long as it is let.
    body = json.dumps({"model": model, "messages": [message], "temperature": 0, "max_tokens": 64})
    return f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _cause(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
