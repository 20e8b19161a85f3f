"""Reading a body within its limits, and JSON errors that name the field."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import msgspec
import pytest
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.errors import InvalidRequestError, RequestTooLargeError
from triolet.web.body import DISCARD_BYTES, MAX_DEPTH, BodyTimeoutError, decode_json, discard_body, read_body
from triolet.web.request_scope import SCOPE_KEY, RequestScope

pytestmark = pytest.mark.anyio


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Outer(msgspec.Struct):
    items: list[Inner]
    ratio: float = 0.0
    extra: Any = None


def request_of(*chunks: bytes, is_hanging: bool = False, has_come: bool = False) -> Any:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        if is_hanging:
            await anyio.sleep_forever()

    return SimpleNamespace(body=body(), scope={SCOPE_KEY: RequestScope(has_whole_body=has_come)})


@pytest.mark.parametrize("has_come", [False, True])
async def test_a_body_comes_whole(has_come: bool) -> None:
    assert await read_body(request_of(b"ab", b"c", has_come=has_come), max_bytes=3) == b"abc"


@pytest.mark.parametrize("has_come", [False, True])
async def test_a_body_above_the_limit_is_refused(has_come: bool) -> None:
    request = request_of(*[b"x" * 10] * 5, is_hanging=True, has_come=has_come)
    with pytest.raises(RequestTooLargeError, match="40 bytes"):
        await read_body(request, max_bytes=40)
    await request.body.aclose()


async def test_what_is_left_of_a_body_is_dropped_within_limits() -> None:
    assert await discard_body(request_of())
    assert await discard_body(request_of(b"x", b"y"))
    assert not await discard_body(request_of(b"x", is_hanging=True), timeout=0)
    assert await discard_body(request_of(b"x", is_hanging=True, has_come=True), timeout=0)
    endless = request_of(b"x" * DISCARD_BYTES, b"y", is_hanging=True)
    assert not await discard_body(endless)
    await endless.body.aclose()


async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(BodyTimeoutError, match="within 0"):
        await read_body(request_of(b"ab", is_hanging=True), max_bytes=40, timeout=0)


@pytest.mark.parametrize(
    ("data", "param", "words"),
    [
        (b'{"items": [{"size": 1}, {"size": "x"}]}', "items[1].size", "Expected `int`"),
        (b'{"items": [{}]}', "items[0].size", "missing required field"),
        (b'{"items": [{"size": 1, "more": 2}]}', "items[0].more", "unknown field"),
        (b"{}", "items", "missing required field"),
        (b'{"items": [], "ratio": 1e999}', "ratio", "out of range"),
        (b'{"items": [], "ratio": NaN}', None, "not valid JSON"),
        (b'{"items": [], "ratio": Infinity}', None, "not valid JSON"),
        (b"[1]", None, "must be a JSON object"),
        (b"5", None, "must be a JSON object"),
        (b"", None, "not valid JSON"),
        (b'{"items": ', None, "not valid JSON"),
        (b'{"items": [], "extra": "\xff"}', None, "not valid JSON"),
        (b'{"items": [], "extra": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", None, "too deeply"),
        (b'{"items": [], "other": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", None, "too deeply"),
        (b'{"items": [], "extra": ' + b"9" * 5000 + b"}", "extra", "out of range"),
    ],
)
async def test_json_errors_name_the_field(data: bytes, param: str | None, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        decode_json(data, Outer)
    assert caught.value.param == param


@pytest.mark.parametrize("num_levels", [150, 250, 320, 900])
async def test_what_can_be_read_can_be_told_again(num_levels: int, anyio_backend_name: str) -> None:
    """A response names the tools of its request, inside of more than they were in."""
    parameters = '{"a":' * num_levels + "1" + "}" * num_levels
    tools = f'[{{"type": "function", "name": "f", "parameters": {parameters}}}]'
    body = f'{{"input": "hi", "tool_choice": "none", "tools": {tools}}}'
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await running.client.post("/v1/responses", content=body.encode())
    assert answer.status_code == (200 if num_levels < MAX_DEPTH else 400), answer.text[:300]


def test_depth_is_bounded_and_brackets_in_texts_are_not_counted() -> None:
    def deep(num_levels: int) -> bytes:
        return b'{"items":[],"extra":' + b"[" * num_levels + b"]" * num_levels + b"}"

    decode_json(deep(MAX_DEPTH - 1), Outer)
    for num_levels in (MAX_DEPTH, 900, 100_000):
        with pytest.raises(InvalidRequestError, match="nested too deeply"):
            decode_json(deep(num_levels), Outer)
    flat = [{"a": ["[" * 300, '{"' * 300, "\\", "]"]}] * MAX_DEPTH
    assert decode_json(msgspec.json.encode({"items": [], "extra": flat}), Outer).extra == flat
