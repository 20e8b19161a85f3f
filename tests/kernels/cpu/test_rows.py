"""Picking and converting rows on the CPU."""

from __future__ import annotations

import pytest
import torch

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [1, 33, 3000])
def test_rows_in_any_order(ops: CpuOps, dtype: torch.dtype, size: int) -> None:
    x, rows = torch.randn(40, size).to(dtype), torch.tensor([39, 0, 7, 7])
    for each in (ops, CpuOps(NativeLibrary.missing())):
        assert torch.equal(each.take_rows(x, rows), x[rows])
        assert each.take_rows(x, rows[:0]).shape == (0, size)


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 4097), (9, 20000)])
def test_to_float32(ops: CpuOps, shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    for each in (ops, CpuOps(NativeLibrary.missing())):
        assert each.to_float32(x) is x
        converted = each.to_float32(x.bfloat16())
        assert converted.dtype == torch.float32
        assert torch.equal(converted, x.bfloat16().float())
