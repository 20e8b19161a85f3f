"""Linear layers of a mixture of experts on a GPU: one launch for all experts, however many rows each has.

The host does not know how many rows an expert has. So there are as many programs as there could be tiles,
each finds its expert and its rows by itself, and those that are left over do nothing. Where a row's result
must not depend on how many there are, tiles are always those for few. Quantised weights of the formats that
linear layers keep stay quantised as well. Must not know how rows came to their experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.linear_kernels import tile_product
from triolet_kernels.gpu.quantized_weight import (
    PackedCodes,
    constants_of,
    is_packable,
    pack_codes,
    tensors_of,
)
from triolet_kernels.quant import QuantTensor

__all__ = ["ExpertKernels", "PackedExperts"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """``weight`` (experts * out, in): dense of the dtype of the inputs, or in codes. ``shape``: that of one
    expert's (out, in)."""

    weight: Tensor | PackedCodes
    num_experts: int
    shape: tuple[int, int]


MANY_ROWS = 64
"""With as many rows for each expert, on average, larger tiles are worth while."""


class ExpertKernels:
    """The layers on one device."""

    def __init__(self, device: GpuDevice, *, is_batch_invariant: bool = False) -> None:
        """``is_batch_invariant``: a row's result is the same whatever is beside it."""
        self._device = device
        self._is_batch_invariant = is_batch_invariant

    def pack_experts(self, weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> PackedExperts:
        """Raises NotFiniteError for scales of quantised weights that are infinite or not numbers."""
        device, (num_outputs, width) = self._device.torch_device, weights[0].shape
        quantised = [one for one in weights if isinstance(one, QuantTensor) and is_packable(one)]
        if len(quantised) == len(weights) and len({one.kind for one in quantised}) == 1:
            codes = pack_codes(QuantTensor.concatenate(quantised), device)
            return PackedExperts(codes, len(weights), (num_outputs, width))
        dense = torch.empty(len(weights), num_outputs, width, dtype=dtype, device=device)
        for target, weight in zip(dense, weights, strict=True):
            target.copy_(weight.dequantize() if isinstance(weight, QuantTensor) else weight)
        return PackedExperts(dense.flatten(0, 1), len(weights), (num_outputs, width))

    def expert_linear(self, x: Tensor, packed: PackedExperts, expert_starts: Tensor) -> Tensor:
        num_rows, num_experts, (num_outputs, width) = x.shape[0], packed.num_experts, packed.shape
        is_many = num_rows >= MANY_ROWS * num_experts and not self._is_batch_invariant
        shape_class = "many rows each" if is_many else "few rows each"
        if isinstance(packed.weight, PackedCodes):
            shape_class += ", codes"
        configuration = self._device.configurations.find("expert_linear", shape_class)
        assert configuration is not None, "every table has them all"
        tile = configuration.constants
        # Each expert's last tile may be part empty: there are no more of these than experts, or rows.
        most_tiles = num_rows // tile["BLOCK_M"] + min(num_experts, num_rows)
        output = x.new_empty(num_rows, num_outputs)
        self._device.launch(
            _expert_linear,
            (most_tiles, triton.cdiv(num_outputs, tile["BLOCK_N"])),
            configuration,
            *(x, *tensors_of(packed.weight), expert_starts, output, num_outputs, width),
            NUM_EXPERTS=num_experts,
            EXPERTS_BLOCK=triton.next_power_of_2(num_experts),
            **constants_of(packed.weight),
        )
        return output


@triton.jit
def _expert_linear(
    x, weights, scales, minimums, expert_starts, output, N, K,
    NUM_EXPERTS: tl.constexpr, EXPERTS_BLOCK: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    experts = tl.arange(0, EXPERTS_BLOCK)
    is_expert = experts < NUM_EXPERTS
    starts = tl.load(expert_starts + experts, mask=is_expert, other=0)
    ends = tl.load(expert_starts + experts + 1, mask=is_expert, other=0)
    num_tiles = (ends - starts + BLOCK_M - 1) // BLOCK_M
    tiles_before = tl.cumsum(num_tiles, axis=0) - num_tiles
    is_own = (tiles_before <= tile) & (tile < tiles_before + num_tiles)
    if tl.max(is_own.to(tl.int32), axis=0) > 0:
        expert = tl.sum(tl.where(is_own, experts, 0), axis=0).to(tl.int64)
        first = tl.sum(tl.where(is_own, starts + (tile - tiles_before) * BLOCK_M, 0), axis=0)
        end = tl.sum(tl.where(is_own, ends, 0), axis=0)
        row_ids = first + tl.arange(0, BLOCK_M)
        output_ids = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_row, is_output = row_ids < end, output_ids < N
        rows = tl.where(is_row, row_ids, first).to(tl.int64)
        columns = tl.where(is_output, output_ids, 0).to(tl.int64)
        total = tile_product(
            x, weights, scales, minimums, rows, is_row, expert * N + columns, 0, K, K,
            BITS, GROUP, OFFSET, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        places = output + rows[:, None] * N + columns[None, :]
        is_inside = is_row[:, None] & is_output[None, :]
        tl.store(places, total.to(output.dtype.element_ty), mask=is_inside)
