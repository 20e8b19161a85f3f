"""Requests that are handled in the server's own task, where it can tell that their client has left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from quart import Quart, Response, request, session
from quart_trio import QuartTrio
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_until, request_bytes, serving

from triolet.web.direct_handling import NoSessions, direct
from triolet.web.middleware import DEPARTURE, Departure

pytestmark = pytest.mark.anyio


class Client:
    """What a server does for one request; ``sent`` is the answer."""

    def __init__(self, *pieces: bytes, departure: Departure | None) -> None:
        self._pieces = list(pieces)
        self.sent: list[Any] = []
        self.num_waits = 0
        self.is_held = anyio.Event()
        extensions = {} if departure is None else {DEPARTURE: departure}
        self.scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/",
            "query_string": b"", "headers": [(b"host", b"h")], "client": None, "extensions": extensions,
        }  # fmt: skip

    async def receive(self) -> Any:
        if self._pieces:
            body = self._pieces.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self._pieces)}
        self.num_waits += 1
        await anyio.sleep_forever()

    async def send(self, message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class Pieces:
    """A body that knows, or does not, when it has given its last piece."""

    def __init__(self, *pieces: bytes) -> None:
        self._left = list(pieces)

    @property
    def is_ended(self) -> bool:
        return not self._left

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop(0)


@pytest.fixture
def app(anyio_backend_name: str) -> Quart:
    kind = QuartTrio if anyio_backend_name == "trio" else Quart
    app = kind(__name__)
    app.asgi_http_class = direct(app.asgi_http_class)
    app.session_interface = NoSessions()  # type: ignore[assignment]
    app.config.update(RESPONSE_TIMEOUT=None, BODY_TIMEOUT=None)

    @app.post("/")
    async def echo() -> Response:
        return Response(await request.get_data())

    return app


@pytest.mark.parametrize("pieces", [(b"",), (b"ab",), (b"ab", b"cd", b"")])
@pytest.mark.parametrize("is_whole", [True, False, None])
async def test_both_ways_answer_the_same(
    app: Quart, pieces: tuple[bytes, ...], is_whole: bool | None
) -> None:
    departure = None if is_whole is None else Departure(has_whole_request=is_whole)
    client = Client(*pieces, departure=departure)
    await app(client.scope, client.receive, client.send)  # type: ignore[arg-type]
    assert [client.sent[0]["status"], client.body] == [200, b"".join(pieces)]
    assert [message.get("more_body") for message in client.sent] == [None, False]


async def test_nobody_waits_for_the_client_to_leave(app: Quart) -> None:
    client = Client(b"x", departure=Departure(has_whole_request=True))
    await app(client.scope, client.receive, client.send)  # type: ignore[arg-type]
    assert client.num_waits == 0


async def _anonymous() -> AsyncIterator[bytes]:
    yield b"a"


@pytest.mark.parametrize("make", [lambda: Pieces(b"a", b"b"), _anonymous], ids=["knows", "does not"])
async def test_the_end_goes_with_the_last_piece_of_a_stream_that_knows_it(app: Quart, make: Any) -> None:
    async def stream() -> Response:
        return Response(make())

    app.view_functions["echo"] = stream
    client = Client(b"x", departure=Departure(has_whole_request=True))
    await app(client.scope, client.receive, client.send)  # type: ignore[arg-type]
    assert [message.get("more_body") for message in client.sent] == [None, True, False]
    assert client.body == (b"a" if make is _anonymous else b"ab")


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_handler_ends_when_the_client_leaves(app: Quart, is_early: bool) -> None:
    departure = Departure(has_whole_request=True)
    began, ended = anyio.Event(), anyio.Event()

    async def wait() -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    app.view_functions["echo"] = wait  # type: ignore[assignment]
    client = Client(b"x", departure=departure)
    if is_early:
        departure.tell()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, client.scope, client.receive, client.send)  # type: ignore[arg-type]
            if not is_early:
                await began.wait()
                departure.tell()
    assert client.sent == []
    assert ended.is_set() == began.is_set()


async def test_a_client_that_leaves_before_its_request_was_read_gets_nothing(app: Quart) -> None:
    client = Client(departure=Departure(has_whole_request=True))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await app(client.scope, receive, client.send)  # type: ignore[arg-type]
    assert client.sent == []


async def test_there_are_no_sessions(app: Quart) -> None:
    async def look() -> Response:
        with pytest.raises(RuntimeError, match="session is unavailable"):
            session["a"] = 1
        return Response(str(len(session)))

    app.view_functions["echo"] = look
    client = Client(b"x", departure=Departure(has_whole_request=True))
    await app(client.scope, client.receive, client.send)  # type: ignore[arg-type]
    assert client.body == b"0"


@pytest.mark.parametrize("cut", [0, 1], ids=["at once", "in two pieces"])
async def test_requests_that_come_whole_and_in_pieces_are_answered(anyio_backend_name: str, cut: int) -> None:
    whole = request_bytes("/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True})
    async with serving(FakeEngine(), anyio_backend_name) as running, await running.connect() as stream:
        for _ in range(3):
            await stream.send(whole[: len(whole) - cut])
            if cut:
                await anyio.wait_all_tasks_blocked()
                await stream.send(whole[-cut:])
            assert b"[DONE]" in await read_until(stream, b"\r\n0\r\n\r\n")
