"""Linear layers of a mixture of experts in float32: each row is multiplied by the weight of its own expert.

Must not know how rows came to their experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["PackedExperts", "expert_linear", "pack_experts"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedExperts:
    """``weight`` (experts, out, in) float32."""

    weight: Tensor


def pack_experts(weight: Tensor) -> PackedExperts:
    return PackedExperts(weight.float())


def expert_linear(
    x: Tensor, packed: PackedExperts, expert_starts: Tensor, row_weights: Tensor | None = None
) -> Tensor:
    num_rows = x.shape[0]
    rows = torch.arange(num_rows, device=x.device)
    experts = torch.bucketize(rows, expert_starts[1:].to(x.device, torch.int64), right=True)
    output = torch.empty(num_rows, packed.weight.shape[1], dtype=torch.float32, device=x.device)
    for expert, weight in enumerate(packed.weight):
        is_chosen = experts == expert
        output[is_chosen] = x[is_chosen].float() @ weight.T
    if row_weights is not None:
        output *= row_weights[:, None]
    return output.to(x.dtype)
