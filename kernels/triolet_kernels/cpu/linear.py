"""Linear layers and embedding tables.

Quantised weights stay quantised and go to a compiled kernel: on matrix tiles where the CPU has them, else
with inputs rounded to int8 in blocks of 32; so they do for bfloat16 only: float32 asks for exact arithmetic.
Formats without a kernel are put into one that has one (see ``recode``). Everything else is dequantised and
goes to the dense kernel. Without compiled kernels torch multiplies: its own results depend on the number of
rows.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.cpu.dense_linear import PackedDense, pack_dense
from triolet_kernels.cpu.loader import Kernel, NativeLibrary
from triolet_kernels.cpu.packed_weight import PackedWeight, decode_rows, format_of, is_packable, pack
from triolet_kernels.cpu.tile_linear import PANEL, PackedTiles, pack_tiles
from triolet_kernels.cpu.weight_memory import WeightMemory
from triolet_kernels.quant import QuantTensor
from triolet_kernels.recode import to_q4_1, to_q8_0

if TYPE_CHECKING:
    from triolet_kernels.ops import GatedActivation

__all__ = ["LinearKernels", "PackedEmbedding", "PackedLinear", "Panels"]

logger = logging.getLogger("triolet.kernels")

Panels: TypeAlias = PackedTiles | PackedWeight | PackedDense
"""A weight as one of the kernels takes it."""

_PACKERS: tuple[tuple[type[Panels], Callable[[QuantTensor, WeightMemory], Panels]], ...] = (
    (PackedTiles, pack_tiles),
    (PackedWeight, pack),
)
"""What keeps a weight quantised, the best first."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """``weight``: panels of one of the kernels, or (out, in) for torch; ``bias`` (out,)."""

    weight: Panels | Tensor
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
        self._kernels: dict[type[Panels], dict[torch.dtype, Kernel]] = {
            PackedTiles: native.kernels("tile_linear"),
            PackedWeight: native.kernels("linear"),
            PackedDense: native.kernels("dense_linear"),
        }
        self._gated_kernels: dict[GatedActivation, dict[torch.dtype, Kernel]] = {
            "silu": native.kernels("silu_tile_linear"),
            "gelu": native.kernels("gelu_tile_linear"),
        }
        self._embedding = native.kernels("embedding")
        self._memory = WeightMemory()
        self._widened: set[str] = set()
        self.uses_torch_threads = False

    def pack_linear(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        """Raises NotFiniteError for scales of a quantised weight that are infinite or not numbers."""
        packed = self._pack(weight, dtype)
        if isinstance(packed, Tensor):
            self.uses_torch_threads = True
            return PackedLinear(packed, None if bias is None else bias.to(dtype))
        return PackedLinear(packed, None if bias is None else bias.float())

    def _pack(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> Panels | Tensor:
        """The weight for the best kernel there is, else for torch."""
        if isinstance(weight, QuantTensor):
            pack_codes = next((pack for kind, pack in _PACKERS if dtype in self._kernels[kind]), None)
            if pack_codes is not None:
                recoded = _with_a_kernel(weight)
                self._tell_of_widening(weight, recoded.kind, recoded.data.nbytes)
                return pack_codes(recoded, self._memory)
            name = str(dtype).removeprefix("torch.")
            self._tell_of_widening(weight, name, math.prod(weight.shape) * dtype.itemsize)
            weight = weight.dequantize()
        if dtype not in self._kernels[PackedDense]:
            return weight.to(dtype).contiguous()
        packed = pack_dense(weight, dtype)
        return replace(packed, data=self._memory.keep(packed.data))

    def _tell_of_widening(self, weight: QuantTensor, name: str, num_bytes: int) -> None:
        """Once for each format: it takes more memory than the file lets expect."""
        if weight.kind in self._widened or weight.kind == name:
            return
        self._widened.add(weight.kind)
        logger.info(
            "weights in %s are kept in %s, for which there are kernels: %.1f times their size in the file",
            weight.kind, name, num_bytes / weight.data.nbytes,
        )  # fmt: skip

    def kernel_of(self, weight: Panels, dtype: torch.dtype) -> Kernel:
        """What multiplies inputs of ``dtype`` with such a weight."""
        return self._kernels[type(weight)][dtype]

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        weight, bias = packed.weight, packed.bias
        if isinstance(weight, Tensor):
            return functional.linear(x, weight, bias)
        return self._run(self.kernel_of(weight, x.dtype), x, weight, bias, weight.shape[0])

    def gated_linear(self, x: Tensor, packed: PackedLinear, activation: GatedActivation) -> Tensor | None:
        """None where no kernel does both: gates and ups must lie in panels of their own."""
        weight = packed.weight
        if not isinstance(weight, PackedTiles) or weight.shape[0] % (2 * PANEL):
            return None
        kernel = self._gated_kernels[activation][x.dtype]
        return self._run(kernel, x, weight, packed.bias, weight.shape[0] // 2)

    def _run(
        self, kernel: Kernel, x: Tensor, weight: Panels, bias: Tensor | None, num_outputs: int
    ) -> Tensor:
        num_rows, width = x.shape[0], weight.shape[1]
        output = x.new_empty(num_rows, num_outputs)
        kernel(
            x.data_ptr(),
            weight.data.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            num_rows,
            width,
            num_outputs,
            *weight.format,
            *self._team,
        )
        return output

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:
        if isinstance(weight, QuantTensor):
            return PackedEmbedding(replace(weight, data=weight.data.contiguous()), dtype)
        return PackedEmbedding(weight.to(dtype).contiguous(), dtype)

    def embedding(self, token_ids: Tensor, packed: PackedEmbedding) -> Tensor:
        if not isinstance(packed.weight, QuantTensor):
            return functional.embedding(token_ids, packed.weight)
        kernel = self._embedding.get(packed.dtype)
        if kernel is None or not is_packable(packed.weight):
            rows = packed.weight.rows(token_ids)
            return (decode_rows(rows) if is_packable(rows) else rows.dequantize()).to(packed.dtype)
        num_rows, width = len(token_ids), packed.weight.shape[1]
        output = torch.empty(num_rows, width, dtype=packed.dtype)
        kernel(
            packed.weight.data.data_ptr(),
            token_ids.data_ptr(),
            output.data_ptr(),
            num_rows,
            width,
            *format_of(packed.weight),
            *self._team,
        )
        return output


def _with_a_kernel(weight: QuantTensor) -> QuantTensor:
    """The weight as it is, or in the format with a kernel that is nearest."""
    if is_packable(weight):
        return weight
    return to_q4_1(weight) if weight.kind == "Q4_K" else to_q8_0(weight)
