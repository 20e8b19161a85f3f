"""``GGUFCursor``: the values of a GGUF file, read one after the other, with every bound checked first.

No length is believed before the bytes are known to be there, and nothing larger than what the limits below
allow is made, so a hostile file costs no more memory than a small multiple of its own size. Every failure is
a :class:`ModelFileError` naming the file, the byte and the value it belongs to. This module knows the
encoding of values, not what they mean.
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any, NoReturn

from triolet.errors import ModelFileError

__all__ = ["GGUFCursor"]

MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_LENGTH = 1 << 22
MAX_HEADER_BYTES = 1 << 28

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LENGTH = struct.Struct("<Q")


class GGUFCursor:
    """A position in a mapped file; ``subject`` says in errors what is being read."""

    def __init__(self, data: mmap, source: str) -> None:
        self.data = data
        self.source = source
        self.offset = 0
        self.subject = "header"
        self._end = min(len(data), MAX_HEADER_BYTES)

    def fail(self, problem: str) -> NoReturn:
        raise ModelFileError(f"{self.source}: at byte {self.offset}, {self.subject}: {problem}")

    def unsigned(self, code: str) -> int:
        """One little-endian unsigned integer, by its ``struct`` code."""
        return int(self._scalar(code))

    def string(self, max_bytes: int = MAX_STRING_BYTES) -> str:
        length = self.unsigned("Q")
        if length > max_bytes:
            self.fail(f"a string of {length} bytes is longer than the {max_bytes} allowed here")
        self._need(length)
        raw = self.data[self.offset : self.offset + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"a string is not valid UTF-8: {error.reason} at its byte {error.start}")
        self.offset += length
        return text

    def value(self) -> Any:
        """A value preceded by its type: int, float, bool, str, or a list of one of them."""
        kind = self.unsigned("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            self.fail(f"unknown value type {kind}")
        number = self._scalar(_SCALARS[kind])
        return self._boolean(number) if kind == _BOOL else number

    def _array(self) -> list[Any]:
        kind = self.unsigned("I")
        length = self.unsigned("Q")
        if length > MAX_ARRAY_LENGTH:
            self.fail(f"an array of {length} values is longer than the {MAX_ARRAY_LENGTH} allowed")
        if kind == _STRING:
            return self._strings(length)
        if kind not in _SCALARS:
            self.fail(f"an array of value type {kind} is not supported")
        layout = struct.Struct(f"<{length}{_SCALARS[kind]}")
        self._need(layout.size)
        values = list(layout.unpack_from(self.data, self.offset))
        self.offset += layout.size
        return [self._boolean(value) for value in values] if kind == _BOOL else values

    def _strings(self, length: int) -> list[str]:
        """Token tables hold up to some 300,000 strings, hence the loop without a call per string."""
        self._need(length * _LENGTH.size)
        data, unpack, end = self.data, _LENGTH.unpack_from, self._end
        strings: list[str] = []
        offset = self.offset
        try:
            for _ in range(length):
                start = offset + 8
                offset = start + unpack(data, offset)[0]
                if offset > end:
                    self.fail(f"string {len(strings)} of {length} reaches past the end of the file")
                strings.append(data[start:offset].decode())
        except UnicodeDecodeError as error:
            self.fail(f"string {len(strings)} of {length} is not valid UTF-8: {error.reason}")
        except struct.error:
            self.fail(f"the file ends before string {len(strings)} of {length}")
        self.offset = offset
        return strings

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        self._need(layout.size)
        (value,) = layout.unpack_from(self.data, self.offset)
        self.offset += layout.size
        return value

    def _boolean(self, value: int) -> bool:
        if value > 1:
            self.fail(f"a boolean is 0 or 1, got {value}")
        return value == 1

    def _need(self, num_bytes: int) -> None:
        if num_bytes <= self._end - self.offset:
            return
        if self._end < len(self.data):
            self.fail(f"the header is longer than the {MAX_HEADER_BYTES} bytes allowed")
        self.fail(f"{num_bytes} bytes are needed, {self._end - self.offset} are left; the file is truncated")
