"""Rows of quantised weights, decoded on a GPU. Must not know what the weights belong to."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.quantized_weight import PackedCodes

__all__ = ["CodeRows"]


class CodeRows:
    """Decoding on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def decode(self, weight: PackedCodes, dtype: torch.dtype, rows: Tensor | None = None) -> Tensor:
        """``rows (R,)`` int64 of a weight, or all of them → ``(R, in)``."""
        num_rows = weight.shape[0] if rows is None else rows.shape[0]
        size = weight.shape[1]
        output = torch.empty(num_rows, size, dtype=dtype, device=weight.words.device)
        configuration = self._device.configurations.only("decode_rows")
        self._device.launch(
            _decode_rows,
            (num_rows, triton.cdiv(size, configuration.constants["BLOCK"])),
            configuration,
            *(rows, weight.words, weight.scales, weight.minimums, output),
            SIZE=size,
            BITS=weight.bits,
            GROUP=weight.group_size,
            OFFSET=weight.offset,
        )
        return output


@triton.jit
def _decode_rows(
    row_ids, words, scales, minimums, output,
    SIZE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    PER_WORD: tl.constexpr = 32 // BITS
    index = tl.program_id(0).to(tl.int64)
    row = index
    if row_ids is not None:
        row = tl.load(row_ids + index)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = columns < SIZE
    found = tl.load(words + row * (SIZE // PER_WORD) + columns // PER_WORD, mask=is_inside, other=0)
    codes = (found >> (columns % PER_WORD * BITS)) & ((1 << BITS) - 1)
    groups = row * (SIZE // GROUP) + columns // GROUP
    factors = tl.load(scales + groups, mask=is_inside, other=0.0).to(tl.float32)
    if minimums is not None:
        values = codes.to(tl.float32) * factors
        values += tl.load(minimums + groups, mask=is_inside, other=0.0).to(tl.float32)
    else:
        values = (codes - OFFSET).to(tl.float32) * factors
    tl.store(output + index * SIZE + columns, values.to(output.dtype.element_ty), mask=is_inside)
