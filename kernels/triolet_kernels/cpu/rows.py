"""Picking and converting rows of a matrix through the compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.cpu.loader import NativeLibrary

__all__ = ["RowKernels"]


class RowKernels:
    """The row kernels of one library, and torch where there are none."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._take = native.kernels("take_rows")
        self._to_float32 = native.kernels("to_float32")

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        kernel = self._take.get(x.dtype)
        if kernel is None:
            return x[rows]
        output = x.new_empty(len(rows), x.shape[1])
        kernel(x.data_ptr(), rows.data_ptr(), output.data_ptr(), len(rows), x.shape[1], *self._team)
        return output

    def to_float32(self, x: Tensor) -> Tensor:
        kernel = self._to_float32.get(x.dtype)
        if kernel is None:  # also for what is float32 already
            return x.float()
        output = x.new_empty(x.shape, dtype=torch.float32)
        kernel(x.data_ptr(), output.data_ptr(), *x.shape, *self._team)
        return output
