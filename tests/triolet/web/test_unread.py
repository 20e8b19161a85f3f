"""Requests refused before a parser has seen them: only what a parser would have read as the same request."""

from __future__ import annotations

import re
from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import read_to_end, read_until, request_bytes, serving

from triolet.errors import OverloadedError
from triolet.web.early_refusal import GENERATING_PATHS, LONGEST_BODY, EarlyRefusals
from triolet.web.key_ring import KeyRing
from triolet.web.unread import UnreadRequests

PATH = "/v1/completions"
BODY = {"prompt": "hi", "max_tokens": 4}
REQUEST = request_bytes(PATH, BODY)
DATE = (b"date", b"today")


def full() -> FakeEngine:
    engine = FakeEngine()
    engine.no_room = OverloadedError("too many wait", retry_after=7)
    return engine


def unread(engine: FakeEngine | None = None, *, is_leaving: bool = False) -> UnreadRequests:
    refusals = EarlyRefusals(engine or full(), KeyRing(), is_leaving=lambda: is_leaving)
    return UnreadRequests(refusals, lambda: [DATE])


def parsed(data: bytes) -> h11.Response:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("Host", "a"), ("Content-Length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(data)
    head = client.next_event()
    assert isinstance(head, h11.Response)
    assert isinstance(client.next_event(), h11.Data)
    assert isinstance(client.next_event(), h11.EndOfMessage)
    assert client.trailing_data == (b"", False)
    return head


def test_the_answer_is_whole_and_has_what_every_answer_has() -> None:
    engine = full()
    taken = unread(engine).take(REQUEST)
    assert taken is not None
    answer, rest = taken
    assert rest == b""
    head = parsed(answer)
    assert (head.status_code, head.http_version) == (429, b"1.1")
    headers = dict(head.headers)
    assert (headers[b"retry-after"], headers[b"date"]) == (b"7", b"today")
    assert headers[b"x-request-id"].startswith(b"req-")
    assert engine.refused == [engine.no_room]


@given(st.lists(st.integers(1, len(REQUEST) - 1), max_size=4).map(sorted))
def test_a_body_may_come_in_pieces_and_is_counted_once(cuts: list[int]) -> None:
    engine = full()
    requests = unread(engine)
    head_length = REQUEST.index(b"\r\n\r\n") + 4
    borders = [0, *(cut for cut in cuts if cut >= head_length), len(REQUEST)]
    pieces = [REQUEST[start:end] for start, end in pairwise(borders) if start < end]
    answers = [requests.take(piece) for piece in pieces]
    assert answers[:-1] == [(b"", b"")] * (len(pieces) - 1)
    assert answers[-1] is not None
    assert parsed(answers[-1][0]).status_code == 429
    assert not requests.is_waiting
    assert len(engine.refused) == 1


def test_what_comes_behind_is_left_over() -> None:
    taken = unread().take(REQUEST + b"GET /live HTT")
    assert taken is not None
    assert taken[1] == b"GET /live HTT"


def test_a_client_that_leaves_in_its_body_is_the_parsers() -> None:
    requests = unread()
    assert requests.take(REQUEST[:-1]) == (b"", b"")
    assert requests.is_waiting
    assert requests.take(b"") is None
    assert not requests.is_waiting


def test_nothing_is_taken_while_there_is_room_or_the_server_leaves() -> None:
    assert unread(FakeEngine()).take(REQUEST) is None
    assert unread(is_leaving=True).take(REQUEST) is None


@pytest.mark.parametrize(
    "line",
    [
        b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"Connection: close", b"Upgrade: websocket",
        b"X-Data-Parallel-Rank: 0", b"Content-Length: 30", b"Content-Encoding: gzip", b" folded: line",
        b"no colon", b"name : spaced", b"bell: \x07", b"X-A: 1\r\nx-a: 2", b"bare: \n",
    ],
)  # fmt: skip
def test_what_is_out_of_the_ordinary_is_the_parsers(line: bytes) -> None:
    assert unread().take(REQUEST.replace(b"\r\n\r\n", b"\r\n" + line + b"\r\n\r\n", 1)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"POST", b"GET"), (b"POST", b"post"), (b"HTTP/1.1", b"HTTP/1.0"), (b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
        (PATH.encode(), b"/v1/embeddings"), (PATH.encode(), b"/V1/completions"), (b"Host", b"Most"),
        (PATH.encode(), PATH.encode() + b"?a=1"), (b"Content-Length: ", b"Content-Length: +"),
        (b"Content-Length: ", b"Content-Length: %d" % LONGEST_BODY), (b"POST", b"\r\nPOST"),
        (b"Content-Length: ", b"Content-Length: " + 10 * b"0" + b"9999"),
        (b"Content-Length: ", b"Content-Length: " + 5000 * b"0"),
    ],
)  # fmt: skip
def test_so_is_what_begins_otherwise(old: bytes, new: bytes) -> None:
    changed = REQUEST.replace(old, new, 1)
    assert changed != REQUEST
    assert unread().take(changed) is None


NAMES = (b"Host", b"Content-Length", b"content-length", b"X-A", b"Connection", b"Accept", b"A B", b"\xe9")
COLONS = (b": ", b":", b" :")
VALUES = (b"a", b"0", b"2", b" 3 ", b"keep-alive", b"", b"\t4", b"5\x00", b"\xff", b"2, 2")
ENDS = (b"\r\n", b"\n", b"")
LINES = st.tuples(*map(st.sampled_from, (NAMES, COLONS, VALUES, ENDS)))


@given(
    st.sampled_from(GENERATING_PATHS),
    st.lists(LINES, max_size=5),
    st.sampled_from([b"", b"{}", b"{}{}", b"\r\n"]),
)
def test_what_is_taken_a_parser_reads_as_one_request(
    path: str, lines: list[tuple[bytes, ...]], body: bytes
) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: h\r\n" % path.encode() + b"".join(map(b"".join, lines)) + b"\r\n"
    taken = unread().take(head + body)
    if taken is None:
        return
    server = h11.Connection(h11.SERVER)
    server.receive_data(head + body)
    request = server.next_event()
    assert isinstance(request, h11.Request)
    assert request.target == path.encode()
    length = int(dict(request.headers)[b"content-length"])
    assert taken[1] == body[length:]
    assert bool(taken[0]) == (len(body) >= length)


@pytest.mark.anyio
async def test_requests_sent_ahead_are_answered_in_turn(anyio_backend_name: str) -> None:
    engine = full()
    async with serving(engine, anyio_backend_name) as running, await running.connect() as stream:
        await stream.send(REQUEST[:-3])
        await stream.send(
            REQUEST[-3:] + REQUEST + b"GET /live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        told = await read_to_end(stream)
    assert re.findall(rb"HTTP/1.1 (\d+)", told) == [b"429", b"429", b"200"]
    assert len(engine.refused) == 2


@pytest.mark.anyio
async def test_a_client_may_leave_in_the_midst_of_a_body(anyio_backend_name: str) -> None:
    async with serving(full(), anyio_backend_name) as running:
        async with await running.connect() as stream:
            await stream.send(REQUEST[:-3])
            await stream.send_eof()
            assert await read_to_end(stream) == b""
        assert (await running.client.get("/live")).is_success


@pytest.mark.anyio
async def test_who_sees_every_request_sees_those_refused(
    anyio_backend_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "triolet.access")
    async with (
        serving(full(), anyio_backend_name, access_log="json") as running,
        await running.connect() as stream,
    ):
        await stream.send(REQUEST)
        assert b" 429 " in await read_until(stream, b"}}")
    assert any('"status": 429' in record.getMessage() for record in caplog.records)
