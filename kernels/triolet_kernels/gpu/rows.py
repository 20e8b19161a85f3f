"""Copies of rows by number: one program for a part of a row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice

__all__ = ["RowKernels"]


class RowKernels:
    """Copying rows on one device. The grid depends on the shapes alone."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        configuration = device.configurations.find("take_rows", "any size")
        assert configuration is not None
        self._configuration = configuration

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        num_rows, size = rows.shape[0], x.shape[1]
        output = x.new_empty(num_rows, size)
        grid = (num_rows, triton.cdiv(size, self._configuration.constants["BLOCK"]))
        self._device.launch(_take_rows, grid, self._configuration, x, rows, output, SIZE=size)
        return output


@triton.jit
def _take_rows(x, rows, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + index)
    values = tl.load(x + row * SIZE + columns, mask=columns < SIZE)
    tl.store(output + index * SIZE + columns, values, mask=columns < SIZE)
