"""A server on a real socket inside a test, and raw HTTP for what a well-behaved client does not do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from anyio.abc import SocketStream

from triolet.args import ServeArgs
from triolet.statistics import EngineState
from triolet.web.listener import address_url, listen
from triolet.web.serve import Server


@dataclass
class Running:
    """A server under test. ``lines`` are what it has announced, ``exits`` the codes of forced exits."""

    server: Server
    engine: Any
    port: int
    client: httpx.AsyncClient
    lines: list[str]
    exits: list[int]
    is_over: anyio.Event = field(default_factory=anyio.Event)
    exit_code: int | None = None

    async def connect(self) -> SocketStream:
        return await anyio.connect_tcp("127.0.0.1", self.port)

    async def until_answering(self, *, is_ready: bool) -> None:
        while True:
            with suppress(httpx.TransportError):
                await self.client.get("/live")
                if not is_ready or self.engine.state is EngineState.READY:
                    return
            await anyio.sleep(0.01)


@asynccontextmanager
async def serving(
    engine: Any,
    backend: str,
    *,
    is_ready: bool = True,
    obeys_signals: bool = True,
    **options: Any,
) -> AsyncIterator[Running]:
    """Serve an engine, real or fake, until the block ends, then drain."""
    options = {"host": "127.0.0.1", "port": 0, "shutdown_timeout": 0.0} | options
    args = ServeArgs(backend=backend, **options)  # type: ignore[arg-type]
    listener = listen(args)
    port = 0 if args.uds else listener.getsockname()[1]
    transport = httpx.AsyncHTTPTransport(verify=False, uds=None if args.uds is None else str(args.uds))
    lines: list[str] = []
    exits: list[int] = []
    server = Server(
        args, engine, listener, announce=lines.append, exit_now=exits.append, obeys_signals=obeys_signals
    )
    url = address_url(listener, "http" if args.ssl_certfile is None else "https")
    async with httpx.AsyncClient(base_url=url, timeout=30, transport=transport) as client:
        running = Running(server, engine, port, client, lines, exits)
        async with anyio.create_task_group() as group:

            async def run() -> None:
                running.exit_code = await server.run()
                running.is_over.set()

            group.start_soon(run)
            with anyio.fail_after(30):
                await running.until_answering(is_ready=is_ready)
            try:
                yield running
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(30):
                    if not running.is_over.is_set() and not server.is_leaving:
                        await server.drain()
                    await running.is_over.wait()
                assert exits == [], "the server could not close by itself"
                group.cancel_scope.cancel()


def request_bytes(path: str, body: Any, *, headers: str = "", version: str = "1.1") -> bytes:
    """A POST as it goes over the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: test\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
    return head.encode() + data


async def read_until(stream: SocketStream, marker: bytes, *, seconds: float = 10) -> bytes:
    """What arrives up to and including ``marker``."""
    received = b""
    with anyio.fail_after(seconds):
        while marker not in received:
            received += await stream.receive()
    return received


async def read_to_end(stream: SocketStream, *, seconds: float = 10) -> bytes:
    """What arrives until the server closes."""
    received = b""
    with anyio.fail_after(seconds):
        while True:
            try:
                received += await stream.receive()
            except anyio.EndOfStream:
                return received


def events_of(text: str) -> list[Any]:
    """The data of server-sent events; ``[DONE]`` stays a string, comments are left out."""
    events: list[Any] = []
    for line in text.split("\n"):
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events
