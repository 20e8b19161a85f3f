"""``QuantTensor``: a weight matrix kept in a GGUF block format.

Every row is a run of whole blocks, so rows can be picked, reordered, joined and cut between blocks without
dequantising.
This module must not know which model or operation a weight belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["QUANT_KINDS", "NotFiniteError", "QuantTensor", "check_finite"]

BLOCKS = {
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
}  # fmt: skip
"""Values and bytes in a block of each format."""

QUANT_KINDS = tuple(BLOCKS)
"""The GGUF block formats that can be kept and dequantised."""

_ROWS_AT_A_TIME = 4096


class NotFiniteError(ValueError):
    """Weights are infinite or not numbers, which no training leaves behind: their file is damaged."""


def check_finite(scales: Tensor) -> None:
    """Raise NotFiniteError unless all ``scales`` of a quantised weight are finite."""
    if not torch.isfinite(scales).all():
        raise NotFiniteError("a scale is infinite or not a number")


@dataclass(frozen=True, slots=True, eq=False)
class QuantTensor:
    """A quantised matrix of ``shape`` (out, in).

    ``data`` (out, bytes per row) uint8: the blocks as they are in the file. ``kind``: the GGUF name of the
    format, one of :data:`QUANT_KINDS`. Raises ValueError if these do not agree.
    Formats: ggml's ``block_q*`` structures, as decoded by the ``gguf`` package.
    """

    data: Tensor
    kind: str
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        if self.kind not in QUANT_KINDS:
            raise ValueError(f"kind must be one of {', '.join(QUANT_KINDS)}, got {self.kind!r}")
        num_rows, num_columns = self.shape
        block_size, block_bytes = self._block
        if num_columns % block_size:
            raise ValueError(f"a row of {self.kind} is a multiple of {block_size} values, got {num_columns}")
        expected = (num_rows, num_columns // block_size * block_bytes)
        if self.data.dtype != torch.uint8 or tuple(self.data.shape) != expected:
            raise ValueError(
                f"{self.kind} of shape {self.shape} takes uint8 data of shape {expected}, "
                f"got {self.data.dtype} {tuple(self.data.shape)}"
            )

    @property
    def _block(self) -> tuple[int, int]:
        """Values and bytes in a block."""
        return BLOCKS[self.kind]

    def dequantize(self) -> Tensor:
        """All values, ``shape`` float32, where the data is."""
        from gguf import GGMLQuantizationType, quants  # for few models, and not found everywhere

        values = torch.empty(self.shape, dtype=torch.float32, device=self.data.device)
        for start in range(0, self.shape[0], _ROWS_AT_A_TIME):
            chunk = self.data[start : start + _ROWS_AT_A_TIME].contiguous().cpu().numpy()
            with np.errstate(invalid="ignore"):  # of a damaged file: whoever packs the values sees it
                decoded = quants.dequantize(chunk, GGMLQuantizationType[self.kind])
            values[start : start + len(chunk)] = torch.from_numpy(decoded).view(len(chunk), -1)
        return values

    def rows(self, index: Tensor | slice) -> QuantTensor:
        """The rows picked by an int64 index, in its order, or by a slice."""
        data = self.data[index]
        return QuantTensor(data, self.kind, (data.shape[0], self.shape[1]))

    def columns(self, part: slice) -> QuantTensor:
        """The columns from ``part.start`` to before ``part.stop``. Raises ValueError within a block."""
        block_size, block_bytes = self._block
        if part.start % block_size or part.stop % block_size:
            where = f"{part.start} and {part.stop}"
            raise ValueError(f"{self.kind} is cut between blocks of {block_size} columns, not at {where}")
        data = self.data[:, part.start // block_size * block_bytes : part.stop // block_size * block_bytes]
        return QuantTensor(data, self.kind, (self.shape[0], part.stop - part.start))

    @classmethod
    def concatenate(cls, parts: Sequence[QuantTensor]) -> QuantTensor:
        """The parts below one another. Raises ValueError unless kind and width are the same in all."""
        kinds = sorted({part.kind for part in parts})
        widths = sorted({part.shape[1] for part in parts})
        if len(kinds) != 1 or len(widths) != 1:
            raise ValueError(f"parts must share one kind and width, got kinds {kinds} and widths {widths}")
        data = torch.cat([part.data for part in parts])
        return cls(data, kinds[0], (data.shape[0], widths[0]))
