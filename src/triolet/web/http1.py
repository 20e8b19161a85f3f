"""Hypercorn's side of an HTTP/1 connection, mended where hostile or unlucky clients would do harm.

- It keeps reading while it answers, so that it hears of a client that leaves. Hypercorn stops at the first
  byte behind a request (one sent ahead, or a stray line end); here such bytes wait in a bounded buffer.
- A client that has left is let go at once. Hypercorn keeps its socket until the time for an idle connection
  is up, so that a few dozen clients a second use up the file descriptors.
- Where there are too many connections, one of those that are too many gets what probes ask for, else 503.
- A further piece of a streamed answer takes a short way: h11 and its states cost more than all else did.
- While there is too much work most requests are refused before h11 has seen them.
- The head of an answer waits for what follows it, as ASGI has it, and both go out in one write. So do the
  last piece of a stream and its end.
- Whoever makes an answer is called when its reader leaves, and need not wait for a message that says so.
- No other protocol is spoken, as all of this holds for HTTP/1 alone, and no request is taken whose end two
  readers could see at two places.

It overrides private methods, so it is tied to the versions it was tested with.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import anyio
import h11
import hypercorn.protocol
import hypercorn.protocol.h11
import msgspec
from h11._writers import ChunkedWriter
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Request, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.utils import suppress_body

from triolet.errors import OverloadedError, RequestError
from triolet.web.errors import error_body
from triolet.web.middleware import DEPARTURE, Departure
from triolet.web.unread import UnreadRequests

__all__ = ["MAX_EARLY_BYTES", "UnreadableRequestError", "install_http1"]

MAX_EARLY_BYTES = 64 * 1024
"""What a client may send ahead of its answer; one that sends more is disconnected."""
MAX_CHUNK_BYTES = 2**30
"""A piece of a body that is announced as larger will not come, or is not taken if it does."""

PROBES = (b"/live", b"/ready", b"/health", b"/metrics")
RETRY_AFTER_SECONDS = 1


class UnreadableRequestError(RequestError):
    """What came is no HTTP request that is spoken here."""

    def __init__(self, status: int) -> None:
        reasons = {
            413: "a piece of its body is too large",
            431: "its line and headers are too long",
            501: "its transfer encoding is not chunked",
            505: "its version of HTTP is neither 1.0 nor 1.1",
        }
        super().__init__(f"The request cannot be read: {reasons.get(status, 'it is not valid HTTP/1.1')}.")
        self.status = status  # type: ignore[misc]


class _Connection(h11.Connection):
    """Asks for more data where it would ask to be left alone until the answer is out.

    Empty lines before a request are skipped, as RFC 9112, section 2.2 has it.
    """

    takes_probes_only = False

    def next_event(self) -> Any:
        while self.their_state is h11.IDLE and self.trailing_data[0].startswith(b"\r\n"):
            self._receive_buffer.maybe_extract_at_most(2)
        if self.their_state is h11.IDLE and self.trailing_data == (b"\r", False):
            return h11.NEED_DATA  # for the rest of an empty line
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check_head(event)
            if self.takes_probes_only and event.target.partition(b"?")[0] not in PROBES:
                raise h11.RemoteProtocolError("there are too many connections", error_status_hint=503)
        if getattr(self._reader, "_bytes_in_chunk", 0) > MAX_CHUNK_BYTES:
            raise h11.RemoteProtocolError("a chunk is too large", error_status_hint=413)
        return h11.NEED_DATA if event is h11.PAUSED else event


class _LastBody(Body):
    """A piece behind which the end comes at once."""


class _Stream(HTTPStream):
    """Hands a piece of a body straight on, and tells whoever makes the answer when its reader has left."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.departure = Departure()

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed) and self.state is not ASGIHTTPState.CLOSED:
            self.departure.tell()
        await super().handle(event)
        if isinstance(event, Request):
            self.scope["extensions"][DEPARTURE] = self.departure  # type: ignore[assignment]

    def app_send(self, message: Any) -> Awaitable[None]:  # type: ignore[override]
        if (
            message is None
            or not message.get("body")
            or self.state is not ASGIHTTPState.RESPONSE
            or suppress_body(self.scope["method"], self.response["status"])
        ):
            return super().app_send(message)
        if message.get("more_body"):
            return self.send(Body(self.stream_id, message["body"]))
        return self._send_last(message["body"])

    async def _send_last(self, data: bytes) -> None:
        await self.send(_LastBody(self.stream_id, data))
        await self._send_closed()


class _Turn:
    """A lock that costs next to nothing where nobody else has it, which is nearly always."""

    def __init__(self) -> None:
        self._is_taken = False
        self._is_free: anyio.Event | None = None

    async def __aenter__(self) -> None:
        while self._is_taken:
            self._is_free = self._is_free or anyio.Event()
            await self._is_free.wait()
        self._is_taken = True

    async def __aexit__(self, *_: object) -> None:
        self._is_taken = False
        if self._is_free is not None:
            self._is_free.set()
            self._is_free = None


class _Protocol(H11Protocol):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.connection = _Connection(
            h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
        )
        # The reader and the end of an answer both take events; their order must not be mixed up.
        self._taking_events = _Turn()
        self._is_closed = False
        # A host's own server, which has the same connections, has nothing to refuse.
        refusals = getattr(self.config, "refusals", None)
        self._unread: UnreadRequests | None = None
        if refusals is not None:
            self._unread = UnreadRequests(refusals, self._more_headers)
        self._held = b""

    def take_probes_only(self) -> None:
        """Answer nothing else on this connection: it is one too many."""
        assert isinstance(self.connection, _Connection), "it is new"
        self.connection.takes_probes_only = True
        self._unread = None

    async def handle(self, event: Event) -> None:
        if not isinstance(event, RawData):
            self._is_closed = True
            await super().handle(event)
            await self._stop_idling()
            return
        data = event.data if self._unread is None else await self._refuse(self._unread, event.data)
        if data is None:
            return
        if self._is_answering and len(self.connection.trailing_data[0]) > MAX_EARLY_BYTES:
            await self.send(Closed())
        else:
            async with self._taking_events:
                await super().handle(RawData(data))

    async def _refuse(self, unread: UnreadRequests, data: bytes) -> bytes | None:
        """Answer what is refused unread, and → what is left for the parser; None where that is nothing."""
        while (unread.is_waiting or self._is_idle) and (taken := unread.take(data)) is not None:
            answer, data = taken
            if answer:
                await self.send(Updated(idle=True))
                await self.send(RawData(answer))
            if not data:
                return None
        return data

    def stream_send(self, event: StreamEvent) -> Awaitable[None]:  # type: ignore[override]
        """Frames a piece of a chunked body here: h11 takes ten times as long over it."""
        if isinstance(event, Body) and type(getattr(self.connection, "_writer", None)) is ChunkedWriter:
            piece = b"%x\r\n%b\r\n" % (len(event.data), event.data)
            return self._write(piece) if type(event) is Body else self._hold(piece)
        return super().stream_send(event)

    async def _send_h11_event(self, event: Any) -> None:
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return
        if type(event) is h11.Response:
            await self._hold(data)
        elif data or self._held:
            await self._write(data)

    async def _hold(self, data: bytes) -> None:
        """Write it with what follows."""
        self._held += data

    def _write(self, data: bytes) -> Awaitable[None]:
        if self._held:
            data, self._held = self._held + data, b""
        return self.send(RawData(data))

    async def _maybe_recycle(self) -> None:
        await super()._maybe_recycle()
        if self._is_closed:
            await self._stop_idling()
        elif self.connection.our_state is h11.IDLE and self.connection.trailing_data[0]:
            async with self._taking_events:
                await self._handle_events()

    async def _check_protocol(self, event: h11.Request) -> None:
        """Leaves offers of another protocol alone, as any server may."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Leaves that of a WebSocket alone, too."""
        if any(name == b"upgrade" for name, _ in request.headers):
            items = request.headers.raw_items()
            request = h11.Request(
                method=request.method,
                target=request.target,
                headers=[(name, value) for name, value in items if name.lower() != b"upgrade"],
                http_version=request.http_version,
            )
        await super()._create_stream(request)
        if isinstance(self.stream, _Stream):
            self.stream.departure.has_whole_request = self._has_whole(request)

    def _has_whole(self, request: h11.Request) -> bool:
        """Whether the body of this request has come with its head."""
        fields = dict(request.headers)
        if b"transfer-encoding" in fields:
            return False
        return int(fields.get(b"content-length", 0)) <= len(self.connection.trailing_data[0])

    async def _send_error_response(self, status_code: int) -> None:
        """What is not taken as a request is answered in the shape of any other error."""
        is_crowded = status_code == HTTPStatus.SERVICE_UNAVAILABLE
        error = _crowded() if is_crowded else UnreadableRequestError(status_code)
        body = msgspec.json.encode(error_body(error))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if is_crowded:
            headers.append((b"retry-after", b"%d" % RETRY_AFTER_SECONDS))
        headers += self.config.response_headers("h11")
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        with suppress(h11.LocalProtocolError):  # an answer to HEAD has no body
            await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
        if self._held:
            await self._write(b"")

    async def _stop_idling(self) -> None:
        await self.send(Updated(idle=False))

    def _more_headers(self) -> list[tuple[bytes, bytes]]:
        return self.config.response_headers("h11")

    @property
    def _is_idle(self) -> bool:
        """Whether the next bytes begin a request, one that may be of any kind."""
        connection = self.connection
        return (
            connection.our_state is h11.IDLE
            and connection.their_state is h11.IDLE
            and not connection.trailing_data[0]
        )

    @property
    def _is_answering(self) -> bool:
        return self.connection.their_state is h11.DONE


def _crowded() -> OverloadedError:
    return OverloadedError(
        "The server has as many connections as it can take; try again soon.",
        retry_after=RETRY_AFTER_SECONDS,
        is_serving=False,
    )


def _check_head(request: h11.Request) -> None:
    """Raises :class:`h11.RemoteProtocolError` for a version not spoken here and for two lengths at once.

    RFC 9112, section 6.1: a body with both is likely to be an attempt at smuggling a second request.
    """
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("only HTTP/1 is spoken here", error_status_hint=505)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in request.headers}:
        raise h11.RemoteProtocolError("a body has one length", error_status_hint=400)


def install_http1() -> None:
    """Use it for the connections of this process from here on."""
    hypercorn.protocol.H11Protocol = _Protocol  # type: ignore[attr-defined]
    hypercorn.protocol.h11.HTTPStream = _Stream  # type: ignore[attr-defined,assignment]
