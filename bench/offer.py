"""Requests that are sent when their time has come, whatever became of those before: an open load.

Connections are kept and used again, as clients behind a gateway do. An answer may be a refusal: that is
what is looked at here. The client shares the machine with the server, so it costs as little as it can:
requests are made before, none has a task, and of a refusal the status and two headers are read.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from bench.client import Address, BenchError

__all__ = ["Answer", "Offerer", "arrivals"]


KEEP_SECONDS = 20.0
"""How long a connection is kept unused, less than servers wait for its next request."""
_TOLD = re.compile(rb"(?i)(retry-after|content-length): *([^\r]*)")
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_DONE = b"[DONE]"
_NUM_END_BYTES = 64
"""In which an end and the event before it are."""


@dataclass(slots=True)
class Answer:
    """What became of a request. Times are those of ``time.perf_counter``; ``events`` those of its events."""

    started: float
    status: int = 0
    retry_after: str | None = None
    events: list[float] = field(default_factory=list)
    ended: float = 0.0
    is_whole: bool = False
    num_bytes: int = 0
    """Of the body of one that was not accepted."""

    @property
    def is_accepted(self) -> bool:
        return self.status == 200

    @property
    def latency(self) -> float:
        return self.ended - self.started

    @property
    def time_to_first_token(self) -> float:
        return self.events[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """The times between its events."""
        return [later - earlier for earlier, later in zip(self.events, self.events[1:], strict=False)]


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Seconds after the beginning at which requests come that know nothing of each other (Poisson)."""
    dice = random.Random(seed)
    now = dice.expovariate(rate)
    while now < seconds:
        yield now
        now += dice.expovariate(rate)


class _Connection(asyncio.Protocol):
    """One request at a time. ``on_answer`` is called with each answer, and with itself."""

    def __init__(self, on_answer: Callable[[_Connection, Answer], None]) -> None:
        self._on_answer = on_answer
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._unread = b""
        """Before the head has come all there is, then the end of it."""
        self.is_open = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def send(self, request: bytes) -> None:
        """The ``status`` of its answer is 0 where the connection was closed before."""
        assert self._transport is not None
        self._unread = b""
        self._answer = Answer(started=time.perf_counter())
        self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        now = time.perf_counter()
        self._unread += data
        if not answer.status and not self._read_head(answer):
            return
        if not answer.is_accepted:
            if len(self._unread) >= answer.num_bytes:
                self._finish(now)
            return
        if b'"index"' in data:
            answer.events.append(now)
        self._unread = self._unread[-_NUM_END_BYTES:]
        if self._unread.endswith(_LAST_CHUNK):
            answer.is_whole = _DONE in self._unread
            self._finish(now)

    def _read_head(self, answer: Answer) -> bool:
        """Whether all of it is there."""
        head, found, body = self._unread.partition(b"\r\n\r\n")
        if not found:
            return False
        answer.status = int(head[9:12])
        if not answer.is_accepted:
            told = {name.lower(): value for name, value in _TOLD.findall(head)}
            answer.retry_after = told[b"retry-after"].decode() if b"retry-after" in told else None
            answer.num_bytes = int(told[b"content-length"])
        self._unread = body
        return True

    def _finish(self, now: float) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.ended = now
            self._on_answer(self, answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._finish(time.perf_counter())


class Offerer:
    """Sends streamed requests to one path of an API and keeps the connections that are free."""

    def __init__(self, url: str, path: str) -> None:
        self._address = Address.parse(url)
        self._path = f"{self._address.path}{path}"
        self._free: list[_Connection] = []
        self._on_answer: Callable[[Answer], None] = lambda answer: None
        self.num_connections = 0

    def encode(self, body: Mapping[str, Any]) -> bytes:
        """A request as it is sent; to be made before a time in which the client is to cost little."""
        payload = json.dumps({**body, "stream": True}).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._address.host}:{self._address.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        return head.encode() + payload

    async def ask_at(self, times: Sequence[float], requests: Sequence[bytes]) -> list[Answer]:
        """Send each at its time, in seconds from now, and → all answers once the last has come.

        Raises BenchError where no connection can be made.
        """
        answers: list[Answer] = []
        is_over = asyncio.Event()

        def take(answer: Answer) -> None:
            answers.append(answer)
            if len(answers) == len(times):
                is_over.set()

        self._on_answer = take
        began = time.perf_counter()
        for at, request in zip(times, requests, strict=True):
            delay = began + at - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            await self._send(request)
        await is_over.wait()
        return answers

    async def ask_in_turn(self, num_clients: int, requests: Iterable[bytes]) -> list[Answer]:
        """So many clients, each of which sends the next request when its last has been answered."""
        answers: list[Answer] = []
        num_sent = 0
        news = asyncio.Event()

        def take(answer: Answer) -> None:
            answers.append(answer)
            news.set()

        self._on_answer = take
        for request in requests:
            while num_sent - len(answers) >= num_clients:
                news.clear()
                await news.wait()
            await self._send(request)
            num_sent += 1
        while len(answers) < num_sent:
            news.clear()
            await news.wait()
        return answers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._free:
            connection.close()
        await asyncio.sleep(0)  # in which they are closed

    async def _send(self, request: bytes) -> None:
        """On a connection that is free, or a new one."""
        while self._free:
            connection = self._free.pop()
            if connection.is_open and time.perf_counter() - connection.idle_since < KEEP_SECONDS:
                connection.send(request)
                return
            connection.close()
        self.num_connections += 1
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(
                lambda: _Connection(self._take), self._address.host, self._address.port
            )
        except OSError as error:
            raise BenchError(f"no connection: {error}") from error
        made.send(request)

    def _take(self, connection: _Connection, answer: Answer) -> None:
        if connection.is_open:
            connection.idle_since = answer.ended
            self._free.append(connection)
        self._on_answer(answer)
