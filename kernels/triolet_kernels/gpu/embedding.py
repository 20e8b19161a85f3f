"""Embedding tables on a GPU: rows of dense ones are copied, those of quantised ones decoded as they are read.

Must not know what the tables belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.quantized_weight import PackedCodes, is_packable, pack_codes
from triolet_kernels.gpu.rows import RowKernels
from triolet_kernels.quant import QuantTensor

__all__ = ["EmbeddingKernels", "PackedEmbedding"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedEmbedding:
    """``weight`` (V, hidden), dense of ``dtype`` or in codes; rows are handed out in ``dtype``."""

    weight: Tensor | PackedCodes
    dtype: torch.dtype


class EmbeddingKernels:
    """The embedding tables on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._rows = RowKernels(device)

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:
        """Raises NotFiniteError for scales of a quantised weight that are infinite or not numbers."""
        device = self._device.torch_device
        if isinstance(weight, QuantTensor) and is_packable(weight):
            return PackedEmbedding(pack_codes(weight, device), dtype)
        dense = weight.dequantize() if isinstance(weight, QuantTensor) else weight
        return PackedEmbedding(dense.to(device, dtype).contiguous(), dtype)

    def embedding(self, token_ids: Tensor, packed: PackedEmbedding) -> Tensor:
        weight = packed.weight
        if isinstance(weight, Tensor):
            return self._rows.take_rows(weight, token_ids)
        size = weight.shape[1]
        output = torch.empty(len(token_ids), size, dtype=packed.dtype, device=token_ids.device)
        configuration = self._device.configurations.only("decode_rows")
        self._device.launch(
            _decode_rows,
            (len(token_ids), triton.cdiv(size, configuration.constants["BLOCK"])),
            configuration,
            *(token_ids, weight.words, weight.scales, weight.minimums, output),
            SIZE=size,
            BITS=weight.bits,
            GROUP=weight.group_size,
            OFFSET=weight.offset,
        )
        return output


@triton.jit
def _decode_rows(
    token_ids, words, scales, minimums, output,
    SIZE: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    PER_WORD: tl.constexpr = 32 // BITS
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(token_ids + index)
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
