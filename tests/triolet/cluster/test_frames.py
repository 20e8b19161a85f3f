"""Frames come out whole, however the stream was torn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.cluster import frames
from triolet.cluster.frames import FrameReader, WireError, encode_frame


@given(st.lists(st.binary(max_size=40)), st.data())
def test_any_cut_gives_the_same_payloads(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(encode_frame, payloads))
    reader, received = FrameReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        received += reader.feed(stream[:size])
        stream = stream[size:]
    assert received == payloads


@given(st.lists(st.binary(max_size=40), min_size=1))
def test_payloads_can_be_taken_one_by_one(payloads: list[bytes]) -> None:
    reader, stream = FrameReader(), b"".join(map(encode_frame, payloads))
    received = [reader.feed_one(stream), *(reader.feed_one(b"") for _ in payloads)]
    assert received == [*payloads, None]


@pytest.mark.parametrize("size", [5, 2**32 - 1])
def test_a_frame_that_is_too_long_is_refused_by_its_length(size: int) -> None:
    reader = FrameReader(max_size=4)
    with pytest.raises(WireError, match=f"a frame of {size} bytes was announced: at most 4"):
        reader.feed(size.to_bytes(4, "big"))


def test_the_limit_may_change_between_frames() -> None:
    reader, stream = FrameReader(max_size=4), encode_frame(b"abcd") + encode_frame(b"abcdefgh")
    assert reader.feed_one(stream) == b"abcd"
    reader.max_size = 8
    assert reader.feed(b"") == [b"abcdefgh"]


def test_a_message_that_is_too_long_cannot_be_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_SIZE", 8)
    assert encode_frame(b"12345678") == b"\0\0\0\x0812345678"
    with pytest.raises(WireError, match="9 bytes are too long"):
        encode_frame(b"123456789")
