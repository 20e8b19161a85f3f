"""Requests that are sent when their time has come, whatever became of those before: an open load.

Connections are kept and used again, as clients behind a gateway do. An answer may be a refusal: that is
what is looked at here. The client shares the machine with the server, so it is a plain ``asyncio.Protocol``.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

from bench.client import Address, BenchError, ChunkedDecoder

__all__ = ["Answer", "Offerer", "arrivals"]


@dataclass(slots=True)
class Answer:
    """What became of a request. Times are those of ``time.perf_counter``; ``events`` those of its events."""

    started: float
    status: int = 0
    retry_after: str | None = None
    events: list[float] = field(default_factory=list)
    ended: float = 0.0
    is_whole: bool = False

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
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        self._done: asyncio.Future[Answer] | None = None
        self._head = b""
        self._tail = b""
        self._decoder: ChunkedDecoder | None = None
        self._missing = 0
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.is_open = True

    def send(self, request: bytes) -> asyncio.Future[Answer]:
        """The answer to come. Its ``status`` is 0 where the connection was closed before."""
        assert self._transport is not None
        self._head, self._tail, self._decoder, self._missing = b"", b"", None, 0
        self._answer = Answer(started=time.perf_counter())
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        now, answer = time.perf_counter(), self._answer
        if answer is None:
            return
        if not answer.status:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._read_head(answer, head)
        if self._decoder is None:
            self._missing -= len(data)
            is_over = self._missing <= 0
        else:
            if b'"index"' in data:
                answer.events.append(now)
            self._tail = (self._tail + data)[-64:]
            answer.is_whole = b"[DONE]" in self._tail
            self._decoder.feed(data)
            is_over = self._decoder.is_finished
        if is_over:
            self._finish(now)

    def _read_head(self, answer: Answer, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        answer.status = int(lines[0].split(" ", 2)[1])
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        answer.retry_after = headers.get("retry-after")
        if headers.get("transfer-encoding") == "chunked":
            self._decoder = ChunkedDecoder()
        else:
            self._missing = int(headers.get("content-length", "0"))

    def _finish(self, now: float) -> None:
        if self._answer is not None and self._done is not None and not self._done.done():
            self._answer.ended = now
            self._done.set_result(self._answer)
        self._answer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._finish(time.perf_counter())


class Offerer:
    """Sends streamed requests to one path of an API and keeps the connections that are free."""

    def __init__(self, url: str, path: str) -> None:
        self._address = Address.parse(url)
        self._path = f"{self._address.path}{path}"
        self._free: list[_Connection] = []
        self.num_connections = 0

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """Send it now. Raises BenchError where no connection can be made."""
        connection = await self._connection()
        answer = await connection.send(self._encode(body))
        if connection.is_open:
            self._free.append(connection)
        return answer

    async def ask_at(self, times: Iterable[float], bodies: Iterator[Mapping[str, Any]]) -> list[Answer]:
        """Send each at its time, in seconds from now, and → all answers once the last has come."""
        began = time.perf_counter()
        asked: list[asyncio.Task[Answer]] = []
        async with asyncio.TaskGroup() as group:
            for at in times:
                delay = began + at - time.perf_counter()
                if delay > 0:
                    await asyncio.sleep(delay)
                asked.append(group.create_task(self.ask(next(bodies))))
        return [task.result() for task in asked]

    async def ask_in_turn(
        self, num_clients: int, num_requests: int, bodies: Iterator[Mapping[str, Any]]
    ) -> list[Answer]:
        """So many clients, each of which sends its next request when the last has been answered."""
        numbers = count()
        answers: list[Answer] = []

        async def client() -> None:
            while next(numbers) < num_requests:
                answers.append(await self.ask(next(bodies)))

        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(client())
        return answers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._free:
            connection.close()
        await asyncio.sleep(0)  # in which they are closed

    async def _connection(self) -> _Connection:
        while self._free:
            connection = self._free.pop()
            if connection.is_open:
                return connection
        self.num_connections += 1
        loop = asyncio.get_running_loop()
        try:
            _, made = await loop.create_connection(_Connection, self._address.host, self._address.port)
        except OSError as error:
            raise BenchError(f"no connection: {error}") from error
        return made

    def _encode(self, body: Mapping[str, Any]) -> bytes:
        payload = json.dumps({**body, "stream": True}).encode()
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._address.host}:{self._address.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        return head.encode() + payload
