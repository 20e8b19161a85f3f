"""The encoding of GGUF values: what the ``gguf`` package writes, and bounds that hold for any bytes."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.errors import ModelFileError
from triolet.models import gguf_cursor
from triolet.models.gguf import GGUFFile
from triolet.models.gguf_cursor import GGUFCursor


def cursor(content: bytes) -> GGUFCursor:
    data = mmap.mmap(-1, len(content))
    data[:] = content
    return GGUFCursor(data, "x.gguf")


def test_every_scalar_type_is_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "scalars.gguf", "llama")
    values: dict[str, Any] = {
        "uint8": 200, "int8": -100, "uint16": 60_000, "int16": -30_000, "uint32": 4_000_000_000,
        "int32": -2_000_000_000, "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 0.1,
        "bool": True, "string": "naïve 🦜", "array": [True, False],
    }  # fmt: skip
    for name, value in values.items():
        getattr(writer, f"add_{name}")(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(tmp_path / "scalars.gguf") as file:
        assert {name: file.metadata[name] for name in values} == values


def test_strings_and_arrays_advance_past_themselves() -> None:
    string = struct.pack("<Q", 3) + "aé".encode()
    strings = struct.pack("<IIQ", 9, 8, 2) + string * 2
    numbers = struct.pack("<IIQ3h", 9, 3, 3, 1, -2, 3)
    reader = cursor(strings + numbers + string + b"end")
    assert reader.value() == ["aé", "aé"]
    assert reader.value() == [1, -2, 3]
    assert reader.string() == "aé"
    assert reader.data[reader.offset :] == b"end"


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelFileError, match="a string of 10 bytes is longer than the 9 allowed here"):
        cursor(struct.pack("<Q", 10) + bytes(10)).string(9)
    with pytest.raises(ModelFileError, match=r"an array of \d+ values is longer than the 4194304 allowed"):
        cursor(struct.pack("<IIQ", 9, 0, 2**22 + 1) + bytes(2**22 + 1)).value()
    monkeypatch.setattr(gguf_cursor, "MAX_HEADER_BYTES", 12)
    with pytest.raises(ModelFileError, match="the header is longer than the 12 bytes allowed"):
        cursor(struct.pack("<Q", 10) + bytes(10)).string()


def test_errors_name_file_place_and_subject() -> None:
    reader = cursor(bytes(8))
    reader.offset = 5
    reader.subject = "value of 'k'"
    with pytest.raises(
        ModelFileError, match=r"^x\.gguf: at byte 5, value of 'k': 4 bytes are needed, 3 are left"
    ):
        reader.unsigned("I")


@given(content=st.binary(min_size=1, max_size=200), kind=st.integers(0, 13))
def test_any_bytes_give_a_value_or_our_error(content: bytes, kind: int) -> None:
    reader = cursor(struct.pack("<I", kind) + content)
    try:
        reader.value()
    except ModelFileError:
        return
    assert reader.offset <= len(reader.data)
