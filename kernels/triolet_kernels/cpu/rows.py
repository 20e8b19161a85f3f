"""Picking rows of a matrix through the compiled kernel."""

from __future__ import annotations

from torch import Tensor

from triolet_kernels.cpu.loader import NativeLibrary

__all__ = ["RowKernels"]


class RowKernels:
    """The row kernels of one library, and torch where there are none."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._take = native.kernels("take_rows")

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        kernel = self._take.get(x.dtype)
        if kernel is None:
            return x[rows]
        output = x.new_empty(len(rows), x.shape[1])
        kernel(x.data_ptr(), rows.data_ptr(), output.data_ptr(), len(rows), x.shape[1], *self._team)
        return output
