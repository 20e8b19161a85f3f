"""A mixture of experts in float32: choosing experts, their linear layers, and the sum of what they make.

Must not know what the experts are part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet_kernels.expert_ops import Routing
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference.linear import as_float32

__all__ = [
    "PackedExperts", "add_shared_expert", "choose", "expert_linear", "pack_experts", "route", "sum_experts",
]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """``weight`` (experts, out, in) float32."""

    weight: Tensor


def route(x: Tensor, router: Tensor, num_chosen: int, *, is_normalized: bool) -> Routing:
    return choose(x.float() @ router.T, num_chosen, is_normalized=is_normalized)


def choose(logits: Tensor, num_chosen: int, *, is_normalized: bool) -> Routing:
    """The routing of tokens by their ``logits (T, experts)`` float32."""
    num_tokens, num_experts = logits.shape
    ranked = logits.sort(dim=-1, descending=True, stable=True)
    chosen = ranked.indices[:, :num_chosen]
    counted = ranked.values[:, :num_chosen] if is_normalized else ranked.values
    by_expert = chosen.flatten().sort(stable=True)
    experts = torch.arange(num_experts + 1, device=logits.device)
    return Routing(
        tokens=by_expert.indices // num_chosen,
        expert_starts=torch.searchsorted(by_expert.values, experts).int(),
        pairs=by_expert.indices.argsort().int().view(num_tokens, num_chosen),
        weights=counted.softmax(dim=-1)[:, :num_chosen].contiguous(),
    )


def pack_experts(weights: Sequence[Tensor | QuantTensor]) -> PackedExperts:
    return PackedExperts(torch.stack([as_float32(weight) for weight in weights]))


def expert_linear(x: Tensor, packed: PackedExperts, expert_starts: Tensor) -> Tensor:
    num_rows = x.shape[0]
    rows = torch.arange(num_rows, device=x.device)
    experts = torch.bucketize(rows, expert_starts[1:].to(x.device, torch.int64), right=True)
    output = torch.empty(num_rows, packed.weight.shape[1], dtype=torch.float32, device=x.device)
    for expert, weight in enumerate(packed.weight):
        is_chosen = experts == expert
        output[is_chosen] = x[is_chosen].float() @ weight.T
    return output.to(x.dtype)


def sum_experts(x: Tensor, routing: Routing) -> Tensor:
    rows = x[routing.pairs.long()].float()
    return (rows * routing.weights[..., None]).sum(dim=1).to(x.dtype)


def add_shared_expert(total: Tensor, shared: Tensor, logits: Tensor) -> None:
    """``total += sigmoid(logits) * shared`` in place; ``logits (T, 1)`` float32."""
    total.copy_(total.float() + logits.sigmoid() * shared.float())
