"""``GGUFFile``: the key-value pairs and the tensors of a GGUF file, mapped into memory.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.

The header is parsed here rather than by ``gguf.GGUFReader``: that one believes the counts and lengths it
finds, makes several array objects for each string (4.7 s for SmolLM2-135M's 98,000, against 0.1 s here),
and is made for trusted files. The blocks of quantised tensors are still decoded by the ``gguf`` package.

This module knows neither torch nor what keys and tensors mean.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from triolet.errors import ModelFileError
from triolet.models.gguf_cursor import GGUFCursor

__all__ = ["TENSOR_KINDS", "GGUFFile", "GGUFTensor", "TensorKind"]

_MAGIC = b"GGUF"
_MAX_PAIRS = 1 << 16
_MAX_TENSORS = 1 << 16
_MAX_KEY_BYTES = (1 << 16) - 1
_MAX_NAME_BYTES = 256
_MAX_DIMENSION = 1 << 32
_MAX_ALIGNMENT = 1 << 16
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorKind:
    """A number format: ``block_size`` values take ``block_bytes`` bytes."""

    name: str
    block_size: int
    block_bytes: int


TENSOR_KINDS: Mapping[int, TensorKind] = {
    0: TensorKind("F32", 1, 4),
    1: TensorKind("F16", 1, 2),
    2: TensorKind("Q4_0", 32, 18),
    3: TensorKind("Q4_1", 32, 20),
    6: TensorKind("Q5_0", 32, 22),
    7: TensorKind("Q5_1", 32, 24),
    8: TensorKind("Q8_0", 32, 34),
    10: TensorKind("Q2_K", 256, 84),
    11: TensorKind("Q3_K", 256, 110),
    12: TensorKind("Q4_K", 256, 144),
    13: TensorKind("Q5_K", 256, 176),
    14: TensorKind("Q6_K", 256, 210),
    30: TensorKind("BF16", 1, 2),
}
"""The formats that can be read, by their number in the file."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies: ``shape`` outermost dimension first, ``offset`` from the start of the file."""

    name: str
    kind: TensorKind
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GGUFFile:
    """An open GGUF file, checked from end to end; a context manager.

    ``metadata``: the key-value pairs. ``tensors``: by their names in the file. The mapping is
    private: writing to a view does not reach the disk.
    Raises :class:`ModelFileError` if the file cannot be read or anything in it is not as it must be.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        cursor = GGUFCursor(self._data, str(path))
        num_tensors, num_pairs = _read_counts(cursor)
        self.metadata = _read_metadata(cursor, num_pairs)
        tensors = [_read_tensor(cursor, index) for index in range(num_tensors)]
        self.tensors = _place(cursor, tensors, _alignment(cursor, self.metadata))

    def view(self, tensor: GGUFTensor) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The bytes of a tensor, as a view of the mapped file."""
        return np.frombuffer(self._data, dtype=np.uint8, count=tensor.num_bytes, offset=tensor.offset)

    def close(self) -> None:
        """Unmap the file. Where views are alive it is unmapped with the last of them; until then it takes no
        memory but for what is read again.
        """
        try:
            self._data.close()
        except BufferError:
            self._data.madvise(mmap.MADV_DONTNEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelFileError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_counts(cursor: GGUFCursor) -> tuple[int, int]:
    """Check the header → number of tensors, number of key-value pairs."""
    if cursor.data[:4] != _MAGIC:
        cursor.fail(f"a GGUF file starts with {_MAGIC!r}, this one with {cursor.data[:4]!r}")
    cursor.offset = 4
    version = cursor.unsigned("I")
    if version not in (2, 3):
        is_swapped = version & 0xFFFF == 0
        cursor.fail("big-endian files are not read" if is_swapped else f"version {version} is not 2 or 3")
    num_tensors, num_pairs = cursor.unsigned("Q"), cursor.unsigned("Q")
    left = len(cursor.data) - cursor.offset
    for noun, count, limit, size in (
        ("tensors", num_tensors, _MAX_TENSORS, _SMALLEST_TENSOR),
        ("key-value pairs", num_pairs, _MAX_PAIRS, _SMALLEST_PAIR),
    ):
        if count > limit or count * size > left:
            cursor.fail(f"{count} {noun} cannot be in a file of {len(cursor.data)} bytes (at most {limit})")
    return num_tensors, num_pairs


def _read_metadata(cursor: GGUFCursor, num_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(num_pairs):
        cursor.subject = f"key {index}"
        key = cursor.string(_MAX_KEY_BYTES)
        cursor.subject = f"value of {key[:100]!r}"
        if key in metadata:
            cursor.fail("the key is there twice")
        metadata[key] = cursor.value()
    return metadata


def _alignment(cursor: GGUFCursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    is_valid = isinstance(alignment, int) and 8 <= alignment <= _MAX_ALIGNMENT
    if not is_valid or alignment & (alignment - 1):
        cursor.subject = "value of 'general.alignment'"
        cursor.fail(f"must be a power of two in [8, {_MAX_ALIGNMENT}]")
    return int(alignment)


def _read_tensor(cursor: GGUFCursor, index: int) -> GGUFTensor:
    """One entry of the tensor table; ``offset`` is still from the start of the data."""
    cursor.subject = f"tensor {index}"
    name = cursor.string(_MAX_NAME_BYTES)
    cursor.subject = f"tensor {name!r}"
    num_dimensions = cursor.unsigned("I")
    if not 1 <= num_dimensions <= 4:
        cursor.fail(f"has {num_dimensions} dimensions, not 1 to 4")
    dimensions = [cursor.unsigned("Q") for _ in range(num_dimensions)]
    if not all(1 <= dimension <= _MAX_DIMENSION for dimension in dimensions):
        cursor.fail(f"has dimensions {dimensions}, each must be in [1, {_MAX_DIMENSION}]")
    number = cursor.unsigned("I")
    kind = TENSOR_KINDS.get(number)
    if kind is None:
        names = ", ".join(known.name for known in TENSOR_KINDS.values())
        cursor.fail(f"has format {number}, which is not supported; known are {names}")
    if dimensions[0] % kind.block_size:
        cursor.fail(f"has rows of {dimensions[0]} values, not a multiple of {kind.name}'s {kind.block_size}")
    num_bytes = math.prod(dimensions) // kind.block_size * kind.block_bytes
    return GGUFTensor(name, kind, tuple(reversed(dimensions)), cursor.unsigned("Q"), num_bytes)


def _place(cursor: GGUFCursor, tensors: list[GGUFTensor], alignment: int) -> dict[str, GGUFTensor]:
    """Check where the tensors lie → by name, with offsets from the start of the file."""
    data_start = -(-cursor.offset // alignment) * alignment
    placed: dict[str, GGUFTensor] = {}
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
        cursor.subject = f"tensor {tensor.name!r}"
        if tensor.name in placed:
            cursor.fail("is there twice")
        if tensor.offset % alignment:
            cursor.fail(f"its offset {tensor.offset} is not a multiple of {alignment}")
        if tensor.offset < end:
            cursor.fail(f"its data at offset {tensor.offset} overlap those before, which end at {end}")
        end = tensor.offset + tensor.num_bytes
        missing = data_start + end - len(cursor.data)
        if missing > 0:
            cursor.fail(
                f"its data end {missing} bytes past the end of the file, which is truncated or hostile"
            )
        placed[tensor.name] = GGUFTensor(
            tensor.name, tensor.kind, tensor.shape, data_start + tensor.offset, tensor.num_bytes
        )
    return placed
