"""Embedding tables on a GPU: rows of dense ones are copied, those of quantised ones decoded as they are read.

Must not know what the tables belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triolet_kernels.gpu.code_rows import CodeRows
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
        self._codes = CodeRows(device)
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
        return self._codes.decode(weight, packed.dtype, token_ids)
