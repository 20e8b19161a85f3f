"""Frames: payloads with a length before each, cut out of a stream of bytes again.

A frame is a length of four bytes, big-endian, and as many bytes of payload. Sans-IO; this module knows
neither what a payload means nor who sent it.
"""

from __future__ import annotations

from struct import Struct

from triolet.errors import EngineError

__all__ = ["MAX_FRAME_SIZE", "FrameReader", "WireError", "encode_frame"]

MAX_FRAME_SIZE = 32 << 20
"""Bytes of payload; enough for a prompt of a million tokens and as many allowed token ids."""

_LENGTH = Struct(">I")


class WireError(EngineError):
    """What came over the wire cannot be taken, or what is to go over it cannot be sent."""


def encode_frame(payload: bytes) -> bytes:
    """The payload as it goes over the stream. Raises WireError for more than ``MAX_FRAME_SIZE`` bytes."""
    if len(payload) > MAX_FRAME_SIZE:
        raise WireError(f"{len(payload)} bytes are too long for a message: at most {MAX_FRAME_SIZE}")
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts payloads out of pieces of a stream, however it was torn.

    Holds at most one incomplete frame, besides complete ones not yet taken; a frame announced as longer
    than ``max_size`` raises WireError before any of it is kept, and leaves the reader of no further use.
    ``max_size`` may be changed between two frames.
    """

    def __init__(self, max_size: int = MAX_FRAME_SIZE) -> None:
        self.max_size = max_size
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """All payloads that the data completes. Raises WireError."""
        self._buffer += data
        payloads, start = [], 0
        with memoryview(self._buffer) as view:
            while (end := self._end_of_frame(view, start)) is not None:
                payloads.append(bytes(view[start + _LENGTH.size : end]))
                start = end
        del self._buffer[:start]
        return payloads

    def feed_one(self, data: bytes) -> bytes | None:
        """The first payload if it is complete; the rest stays for later calls. Raises WireError."""
        self._buffer += data
        with memoryview(self._buffer) as view:
            end = self._end_of_frame(view, 0)
            payload = None if end is None else bytes(view[_LENGTH.size : end])
        del self._buffer[: end or 0]
        return payload

    def _end_of_frame(self, view: memoryview, start: int) -> int | None:
        """Where the frame at ``start`` ends, None while it is incomplete."""
        if len(view) - start < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(view, start)
        if size > self.max_size:
            raise WireError(f"a frame of {size} bytes was announced: at most {self.max_size} are taken")
        end = start + _LENGTH.size + size
        return end if end <= len(view) else None
