"""One streamed request to an OpenAI-compatible server over a plain socket, timed.

The client shares the machine with the server it measures, so it is made cheap: an ``asyncio.Protocol`` that
undoes the chunked framing and looks at each event just long enough to time it. Plain HTTP only.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Address", "BenchError", "ChunkedDecoder", "Timed", "stream_request"]


class BenchError(Exception):
    """The server refused a request, or broke off."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the API is: ``http://host:port/v1``."""

    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Address:
        scheme, _, rest = url.partition("://")
        netloc, _, path = rest.partition("/")
        host, _, port = netloc.partition(":")
        if scheme != "http" or not host:
            raise BenchError(f"the address must look like http://127.0.0.1:8000/v1, got {url!r}")
        return cls(host, int(port or 80), f"/{path}".rstrip("/"))


@dataclass(slots=True)
class Timed:
    """What one request took, in seconds on one clock. ``gaps`` are the times between its events.

    Token counts are the server's own, from the usage it reports; without that, events are counted.
    """

    started: float
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def time_to_first_token(self) -> float:
        return self.first - self.started

    @property
    def latency(self) -> float:
        return self.last - self.started


class ChunkedDecoder:
    """Undoes ``Transfer-Encoding: chunked`` (RFC 9112, section 7.1), whatever the sizes bytes arrive in."""

    def __init__(self) -> None:
        self._buffer = b""
        self._missing = 0
        self.is_finished = False

    def feed(self, data: bytes) -> bytes:
        """The body bytes that ``data`` completes."""
        self._buffer += data
        body = []
        while self._buffer:
            if self._missing > 2:
                part, self._buffer = self._buffer[: self._missing - 2], self._buffer[self._missing - 2 :]
                self._missing -= len(part)
                body.append(part)
            elif self._missing:
                skipped = min(self._missing, len(self._buffer))
                self._missing -= skipped
                self._buffer = self._buffer[skipped:]
            else:
                line, found, rest = self._buffer.partition(b"\r\n")
                if not found:
                    break
                size = int(line.split(b";")[0], 16)
                self._buffer, self._missing = rest, size + 2
                self.is_finished = size == 0
        return b"".join(body)


class _Stream(asyncio.Protocol):
    """Reads one answer; ``done`` becomes the :class:`Timed`, or the error."""

    def __init__(self, request: bytes, done: asyncio.Future[Timed]) -> None:
        self._request = request
        self._done = done
        self._is_done = False
        self._head = b""
        self._status = 0
        self._decoder: ChunkedDecoder | None = None
        self._events = b""
        self._timed = Timed(started=0.0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._timed.started = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._status:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._read_head(head)
        if self._decoder is not None:
            data = self._decoder.feed(data)
        self._events += data
        if self._status == 200:
            self._read_events(now)
        # The end of the events is not the end of the answer, which has to be read before the next one can be.
        if self._is_done and (self._decoder is None or self._decoder.is_finished):
            self._finish()

    def _read_head(self, head: bytes) -> None:
        self._status = int(head.split(b" ", 2)[1])
        if b"transfer-encoding: chunked" in head.lower():
            self._decoder = ChunkedDecoder()

    def _read_events(self, now: float) -> None:
        *events, self._events = self._events.split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                self._is_done = True
            elif event.startswith(b"data:"):
                self._read_event(event[5:], now)

    def _read_event(self, data: bytes, now: float) -> None:
        timed = self._timed
        is_last = b'"usage":{' in data.replace(b" ", b"") and b"completion_tokens" in data
        if timed.first and not is_last and b'"error"' not in data:
            timed.gaps.append(now - timed.last)
            timed.last = now
            return
        event = json.loads(data)
        if "error" in event:
            self._fail(str(event["error"]))
        if usage := event.get("usage"):
            timed.prompt_tokens = usage["prompt_tokens"]
            timed.output_tokens = usage["completion_tokens"]
        if not timed.first and any(_text_of(choice) for choice in event.get("choices", ())):
            timed.first = timed.last = now

    def _finish(self) -> None:
        self._timed.output_tokens = self._timed.output_tokens or len(self._timed.gaps) + 1
        if not self._timed.first:
            self._fail("the stream held no token")
        elif not self._done.done():
            self._done.set_result(self._timed)

    def _fail(self, message: str) -> None:
        if not self._done.done():
            self._done.set_exception(BenchError(message))

    def connection_lost(self, exc: Exception | None) -> None:
        body = self._events[:300].decode(errors="replace")
        self._fail(f"status {self._status}, connection closed: {exc or body}")


def _text_of(choice: dict[str, Any]) -> str | None:
    delta = choice.get("delta")
    return choice.get("text") if delta is None else delta.get("content")


async def stream_request(
    address: Address,
    path: str,
    body: dict[str, Any],
    timeout: float,
    kept: list[asyncio.Transport] | None = None,
) -> Timed:
    """POST ``body`` and read the stream to its end. Raises :class:`BenchError`.

    With ``kept`` a connection is taken from there, if there is one, and left there for the next request.
    """
    payload = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    request = (
        f"POST {address.path}{path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
        f"{'Connection: close' if kept is None else 'Connection: keep-alive'}\r\n\r\n"
    ).encode() + payload
    done: asyncio.Future[Timed] = asyncio.get_running_loop().create_future()
    stream = _Stream(request, done)
    try:
        async with asyncio.timeout(timeout):
            transport = await _send(stream, address, kept)
            try:
                timed = await done
            except BaseException:
                transport.abort()
                done.cancel()
                raise
            if kept is None:
                transport.abort()
            else:
                kept.append(transport)
            return timed
    except (OSError, TimeoutError) as error:
        raise BenchError(f"{type(error).__name__}: {error or f'nothing after {timeout:g} s'}") from error


async def _send(stream: _Stream, address: Address, kept: list[asyncio.Transport] | None) -> asyncio.Transport:
    """The connection on which the request goes out."""
    if not kept:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: stream, address.host, address.port)
        return transport
    transport = kept.pop()
    transport.set_protocol(stream)
    stream.connection_made(transport)
    return transport
