"""RMS norm (Zhang and Sennrich 2019), and the same with the addition to the residual before it.

One program for each row, which it holds whole in registers: the order of the sum is fixed by the size alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.configurations import Configuration
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.reference import norm as reference

__all__ = ["MAX_SIZE", "NormKernels"]

MAX_SIZE = 16384
"""Longer rows do not fit into the registers of one program."""


class NormKernels:
    """The norms on one device. The grid is one program for each row."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None) -> Tensor:
        size = x.shape[-1]
        configuration = self._find(size)
        if configuration is None:
            return reference.rms_norm(x, weight, eps, dtype)
        output = torch.empty_like(x, dtype=dtype or x.dtype)
        grid = (x.numel() // size if size else 0,)
        self._device.launch(_rms_norm, grid, configuration, x, weight, output, eps, SIZE=size)
        return output

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[-1]
        configuration = self._find(size)
        if configuration is None:
            return reference.add_rms_norm(x, residual, weight, eps)
        output = torch.empty_like(x)
        grid = (x.numel() // size if size else 0,)
        self._device.launch(_add_rms_norm, grid, configuration, x, residual, weight, output, eps, SIZE=size)
        return output

    def norm_columns(self, x: Tensor, first: int, weight: Tensor, eps: float) -> None:
        (num_rows, stride), size = x.shape, weight.shape[0]
        configuration = self._find(size)
        if configuration is None:
            reference.norm_columns(x, first, weight, eps)
            return
        arguments = (x, weight, eps)
        self._device.launch(
            _norm_columns, (num_rows,), configuration, *arguments, STRIDE=stride, FIRST=first, SIZE=size
        )

    def _find(self, size: int) -> Configuration | None:
        """One configuration for each power of two from 1024 on."""
        block = max(1024, triton.next_power_of_2(size))
        return self._device.configurations.find("norm", f"size {block}") if size <= MAX_SIZE else None


@triton.jit
def _normalize(x, weight, columns, eps, SIZE: tl.constexpr):
    """``x`` (BLOCK,) float32, zero from SIZE on."""
    factor = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    weights = tl.load(weight + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    return x * factor * weights


@triton.jit
def _rms_norm(x, weight, output, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * SIZE
    row = tl.load(x + start + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    normed = _normalize(row, weight, columns, eps, SIZE)
    tl.store(output + start + columns, normed.to(output.dtype.element_ty), mask=columns < SIZE)


@triton.jit
def _norm_columns(
    x, weight, eps, STRIDE: tl.constexpr, FIRST: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    columns = tl.arange(0, BLOCK)
    places = x + tl.program_id(0).to(tl.int64) * STRIDE + FIRST + columns
    row = tl.load(places, mask=columns < SIZE, other=0.0).to(tl.float32)
    normed = _normalize(row, weight, columns, eps, SIZE)
    tl.store(places, normed.to(x.dtype.element_ty), mask=columns < SIZE)


@triton.jit
def _add_rms_norm(x, residual, weight, output, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * SIZE
    total = tl.load(residual + start + columns, mask=columns < SIZE, other=0.0)
    total += tl.load(x + start + columns, mask=columns < SIZE, other=0.0).to(tl.float32)
    tl.store(residual + start + columns, total, mask=columns < SIZE)
    normed = _normalize(total, weight, columns, eps, SIZE)
    tl.store(output + start + columns, normed.to(output.dtype.element_ty), mask=columns < SIZE)
