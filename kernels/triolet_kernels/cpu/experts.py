"""A mixture of experts: the choice of experts, their linear layers and the sum of what they make.

The weights of all experts lie one after the other, as the kernels of linear layers take them: what stays
quantised there does so here. Without compiled kernels the reference computes. Must not know what the experts
are part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.cpu.linear import LinearKernels, PackedLinear, Panels
from triolet_kernels.cpu.loader import NativeLibrary, word_of
from triolet_kernels.cpu.rows import RowKernels
from triolet_kernels.expert_ops import Routing
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference import experts as reference

__all__ = ["ExpertKernels", "Packed", "PackedExperts"]

_PANEL = 32
_NUM_SHAPE_ARGUMENTS = 7
"""Of a kernel of linear layers, before its format."""
_NUM_FORMAT_WORDS = 2


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """``weights``: those of all experts as one, ``shape`` that of one of them (out, in)."""

    weights: Panels
    num_experts: int
    shape: tuple[int, int]


Packed: TypeAlias = PackedExperts | reference.PackedExperts


class ExpertKernels:
    """The kernels of one library, and the reference where there are none."""

    def __init__(self, native: NativeLibrary, linear: LinearKernels, rows: RowKernels) -> None:
        self._team = native.team
        self._linear = linear
        self._rows = rows
        self._route = native.kernels("route")
        self._expert_linear = native.kernels("expert_linear")
        self._sum = native.kernels("sum_experts")
        self._add_shared = native.kernels("add_shared_expert")

    def pack_router(self, weight: Tensor) -> PackedLinear:
        return self._linear.pack_linear(weight.float(), None, torch.float32)

    def route(self, x: Tensor, router: PackedLinear, num_chosen: int, *, is_normalized: bool) -> Routing:
        logits = self._linear.linear(self._rows.to_float32(x), router)
        kernel = self._route.get(logits.dtype)
        if kernel is None:
            return reference.choose(logits, num_chosen, is_normalized=is_normalized)
        num_tokens, num_experts = logits.shape
        routing = Routing(
            tokens=torch.empty(num_tokens * num_chosen, dtype=torch.int64),
            expert_starts=torch.empty(num_experts + 1, dtype=torch.int32),
            pairs=torch.empty(num_tokens, num_chosen, dtype=torch.int32),
            weights=torch.empty(num_tokens, num_chosen, dtype=torch.float32),
        )
        kernel(
            logits.data_ptr(),
            routing.tokens.data_ptr(),
            routing.expert_starts.data_ptr(),
            routing.pairs.data_ptr(),
            routing.weights.data_ptr(),
            num_tokens,
            num_experts,
            num_chosen,
            int(is_normalized),
            *self._team,
        )
        return routing

    def pack_experts(self, weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> Packed:
        if dtype not in self._expert_linear:
            return reference.pack_experts(weights)
        packed = self._linear.pack_linear(_one_below_another(weights), None, dtype).weight
        assert not isinstance(packed, Tensor), "there are kernels"
        num_outputs, width = weights[0].shape
        return PackedExperts(packed, len(weights), (num_outputs, width))

    def expert_linear(self, x: Tensor, packed: Packed, expert_starts: Tensor) -> Tensor:
        if isinstance(packed, reference.PackedExperts):
            return reference.expert_linear(x, packed, expert_starts)
        weights, (num_outputs, width) = packed.weights, packed.shape
        output = x.new_empty(x.shape[0], num_outputs)
        kernel = self._linear.kernel_of(weights, x.dtype)
        roles = kernel.signature[_NUM_SHAPE_ARGUMENTS:]
        words = [word_of(role, value) for role, value in zip(roles, weights.format, strict=True)]
        self._expert_linear[x.dtype](
            kernel.caller,
            kernel.address,
            x.data_ptr(),
            weights.data.data_ptr(),
            expert_starts.data_ptr(),
            output.data_ptr(),
            packed.num_experts,
            weights.data.nbytes // packed.num_experts,
            width,
            num_outputs,
            *words,
            *[0] * (_NUM_FORMAT_WORDS - len(words)),
            *self._team,
        )
        return output

    def sum_experts(self, x: Tensor, routing: Routing) -> Tensor:
        kernel = self._sum.get(x.dtype)
        if kernel is None:
            return reference.sum_experts(x, routing)
        output = x.new_empty(len(routing.pairs), x.shape[1])
        kernel(
            x.data_ptr(),
            routing.pairs.data_ptr(),
            routing.weights.data_ptr(),
            output.data_ptr(),
            *routing.pairs.shape,
            x.shape[1],
            *self._team,
        )
        return output

    def add_shared_expert(self, total: Tensor, shared: Tensor, x: Tensor, gate: PackedLinear) -> None:
        logits = self._linear.linear(self._rows.to_float32(x), gate)
        kernel = self._add_shared.get(total.dtype)
        if kernel is None:
            reference.add_shared_expert(total, shared, logits)
        else:
            kernel(total.data_ptr(), shared.data_ptr(), logits.data_ptr(), *total.shape, *self._team)


def _one_below_another(weights: Sequence[Tensor | QuantTensor]) -> Tensor | QuantTensor:
    """The weights of all experts as one, with rows of zeros so that each begins with a panel of its own.

    They stay quantised where all are of the same kind.
    """
    padding = (0, 0, 0, -weights[0].shape[0] % _PANEL)
    quantised = [weight for weight in weights if isinstance(weight, QuantTensor)]
    if len(quantised) == len(weights) and len({weight.kind for weight in quantised}) == 1:
        data = functional.pad(torch.stack([weight.data for weight in quantised]), padding).flatten(0, 1)
        return QuantTensor(data, quantised[0].kind, (len(data), quantised[0].shape[1]))
    dense = [weight.dequantize() if isinstance(weight, QuantTensor) else weight for weight in weights]
    return functional.pad(torch.stack(dense), padding).flatten(0, 1)
