"""Linear layers and embedding tables.

Quantised weights of the common kinds stay quantised and go to a compiled kernel: on matrix tiles where the
CPU has them, else with inputs rounded to int8 in blocks of 32; so they do for bfloat16 only: float32 asks for
exact arithmetic. Everything else is dequantised and goes to the dense kernel. Without compiled kernels torch
multiplies: its own results depend on the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.cpu.dense_linear import DenseLinearKernels, PackedDense
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.cpu.packed_weight import PackedWeight, decode_rows, is_packable, pack
from triolet_kernels.cpu.tile_linear import PackedTiles, TileLinearKernels
from triolet_kernels.cpu.weight_memory import WeightMemory
from triolet_kernels.quant import QuantTensor

__all__ = ["LinearKernels", "PackedEmbedding", "PackedLinear"]

Panels = TypeVar("Panels", PackedTiles, PackedWeight, PackedDense)


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """A weight as one of the paths below takes it, and ``bias`` (out,).

    ``weight``: panels of one of the kernels, or (out, in) for torch.
    """

    weight: PackedTiles | PackedWeight | PackedDense | Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class PackedEmbedding:
    """``weight`` (V, hidden), kept as it came if quantised; rows are handed out in ``dtype``."""

    weight: Tensor | QuantTensor
    dtype: torch.dtype


class LinearKernels:
    """The linear kernels of one library, and torch's where there are none."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._kernels = native.kernels("linear")
        self._dense = DenseLinearKernels(native)
        self._tiles = TileLinearKernels(native)
        self._memory = WeightMemory()
        self.uses_torch_threads = False

    def pack_linear(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        numbers = None if bias is None else bias.float()
        if isinstance(weight, QuantTensor):
            if self._tiles.takes(weight, dtype):
                return PackedLinear(self._keep(self._tiles.pack(weight)), numbers)
            if dtype == torch.bfloat16 and dtype in self._kernels and is_packable(weight):
                return PackedLinear(self._keep(pack(weight)), numbers)
            weight = weight.dequantize()
        if dtype in self._dense:
            return PackedLinear(self._keep(self._dense.pack(weight, dtype)), numbers)
        self.uses_torch_threads = True
        return PackedLinear(weight.to(dtype).contiguous(), None if bias is None else bias.to(dtype))

    def _keep(self, packed: Panels) -> Panels:
        return replace(packed, data=self._memory.keep(packed.data))

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        if isinstance(packed.weight, PackedTiles):
            return self._tiles.linear(x, packed.weight, packed.bias)
        if isinstance(packed.weight, PackedWeight):
            return self._run(x, packed.weight, packed.bias)
        if isinstance(packed.weight, PackedDense):
            return self._dense.linear(x, packed.weight, packed.bias)
        return functional.linear(x, packed.weight, packed.bias)

    def _run(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        num_rows, (num_outputs, width) = x.shape[0], weight.shape
        output = x.new_empty(num_rows, num_outputs)
        self._kernels[x.dtype](
            x.data_ptr(),
            weight.data.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            num_rows,
            width,
            num_outputs,
            weight.bits,
            weight.offset,
            *self._team,
        )
        return output

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:
        kept = weight if isinstance(weight, QuantTensor) else weight.to(dtype).contiguous()
        return PackedEmbedding(kept, dtype)

    def embedding(self, token_ids: Tensor, packed: PackedEmbedding) -> Tensor:
        if isinstance(packed.weight, QuantTensor):
            rows = packed.weight.rows(token_ids)
            return (decode_rows(rows) if is_packable(rows) else rows.dequantize()).to(packed.dtype)
        return functional.embedding(token_ids, packed.weight)
