"""Plain values as bytes, and what bytes may cost."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.cluster.frames import WireError
from triolet.cluster.packing import MAX_ARRAY, MAX_MAP, check_plain, pack, unpack

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.text(st.characters(categories=["Cs"]))  # of file names that are not UTF-8
    | st.binary()
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    assert unpack(pack(value)) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_plain_values_or_refused(data: bytes) -> None:
    try:
        value = unpack(data)
    except WireError:
        return
    pack(value)


@pytest.mark.parametrize("value", [{1}, 2**70, object()])
def test_what_has_no_place_in_msgpack_cannot_be_sent(value: object) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack(value)


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(1, b""),
        msgpack.ExtType(1, b"x"),
        msgpack.Timestamp(1),
        {1: 2},
        ("a",) * (MAX_ARRAY + 1),
        {str(key): None for key in range(MAX_MAP + 1)},
        ({},) * 300,
    ],
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(WireError):
        unpack(msgpack.packb(value))


@pytest.mark.parametrize(
    "value",
    [
        (((((((((1,),),),),),),),),),
        {"a": {"a": {"a": {"a": {"a": {"a": {"a": {"a": {}}}}}}}}},
        (0,) * (MAX_ARRAY + 1),
        {str(key): None for key in range(MAX_MAP + 1)},
        [{}] * 300,
        {b"a": 1},
    ],
)
def test_values_out_of_the_limits_are_found_before_they_are_sent(value: Any) -> None:
    with pytest.raises(WireError):
        check_plain(value)


def test_a_value_that_holds_itself_is_found() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(WireError, match="nested at most 8 deep"):
        check_plain(value)


BOMBS = {
    "arrays announced within arrays": b"\xdc\x0f\xff" * 100_000,
    "arrays announced longer than they can be": b"\xdd\xff\xff\xff\xff" * 1000,
    "deep arrays": b"\x91" * 1_000_000,
    "deep maps": b"\x81\xa1a" * 300_000,
    "arrays of one": b"\xdc\x01\xf4" + (b"\xdc\x01\x00" + b"\x91\xc0" * 256) * 500,
    "empty maps": b"\xdc\x01\xf4" + (b"\xdc\x01\x00" + b"\x80" * 256) * 500,
    "short strings": b"\xdc\x01\xf4" + (b"\xdc\x01\x00" + b"\xa2ab" * 256) * 500,
    "a string announced longer than all": b"\xdb\xff\xff\xff\xff" + bytes(1000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_bytes_take_much_memory(name: str) -> None:
    """At most 40 bytes for each received, and 33 MB for arrays that were only announced."""
    data = BOMBS[name]
    tracemalloc.start()
    try:
        with suppress(WireError):
            unpack(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 40 * len(data) + 33_600_000
