"""Plain values as bytes: msgpack with every limit set.

Plain are None, bool, int of 64 bits, float, str, bytes, tuples (a list arrives as one) and dicts with strings
for keys. Whatever the bytes are, :func:`unpack` raises WireError or nothing, and what it takes in memory is
bounded: an array or map announced as longer than its limit is refused before it is made. Arrays within
arrays are made before what is in them is seen, 1,024 deep at most, hence the low limit.

This module knows no class but its own error.
"""

from __future__ import annotations

from typing import Any

import msgpack

from triolet.cluster.frames import WireError

__all__ = ["MAX_ARRAY", "MAX_MAP", "check_plain", "pack", "unpack"]

MAX_ARRAY = 4096
MAX_MAP = 1024
MAX_MAPS = 256
"""In one message: an empty map costs its sender a byte, and us eighty."""
UNICODE_ERRORS = "surrogatepass"
"""File names that are not UTF-8, and what JSON may hold, have halves of surrogate pairs in them."""
MAX_DEPTH = 8
"""Of values that no type hint describes."""


def pack(value: Any) -> bytes:
    """Plain values as msgpack. Raises WireError for what has no place in it."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors=UNICODE_ERRORS)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"cannot be sent: {error}") from None
    return packed


def unpack(data: bytes) -> Any:
    """Plain values from msgpack. Raises WireError."""
    try:
        return msgpack.unpackb(
            data, raw=False, unicode_errors=UNICODE_ERRORS, use_list=False, strict_map_key=True,
            ext_hook=_refuse_extension, object_hook=_MapCounter(),
            max_str_len=len(data), max_bin_len=len(data), max_ext_len=0,
            max_array_len=min(MAX_ARRAY, len(data)), max_map_len=min(MAX_MAP, len(data)),
        )  # fmt: skip
    except WireError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise WireError(f"is not msgpack within the limits: {type(error).__name__}") from None


class _MapCounter:
    __slots__ = ("num_maps",)

    def __init__(self) -> None:
        self.num_maps = 0

    def __call__(self, value: dict[str, Any]) -> dict[str, Any]:
        self.num_maps += 1
        if self.num_maps > MAX_MAPS:
            raise WireError(f"more than {MAX_MAPS} maps")
        return value


def _refuse_extension(code: int, data: bytes) -> Any:
    raise WireError("extension types are not used")


def check_plain(value: Any) -> Any:
    """The value itself, if it is within the limits, on either side. Raises WireError."""
    count_map = _MapCounter()

    def check(item: Any, depth: int) -> None:
        if isinstance(item, dict):
            count_map(item)
            if len(item) > MAX_MAP or not all(isinstance(key, str) for key in item):
                raise WireError(f"a map must have at most {MAX_MAP} entries, with strings for keys")
        elif not isinstance(item, tuple | list):
            return
        elif len(item) > MAX_ARRAY:
            raise WireError(f"an array must have at most {MAX_ARRAY} values, not {len(item)}")
        if depth == 0:
            raise WireError(f"values must be nested at most {MAX_DEPTH} deep")
        for part in item.values() if isinstance(item, dict) else item:
            check(part, depth - 1)

    check(value, MAX_DEPTH)
    return value
