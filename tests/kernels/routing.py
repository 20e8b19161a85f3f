"""What tests of a mixture of experts share: routings that are as the contract has them."""

from __future__ import annotations

import torch
from torch import Tensor

from triolet_kernels.expert_ops import Routing

__all__ = ["assert_same_routing", "starts_of", "tied_logits"]


def starts_of(sizes: list[int]) -> Tensor:
    """Where the rows of experts with so many start, and where they end."""
    return torch.tensor([0, *sizes]).cumsum(0).int()


def tied_logits(num_tokens: int, num_experts: int) -> Tensor:
    """Half of the rows have many equal logits."""
    logits = 3 * torch.randn(num_tokens, num_experts)
    logits[::2] = logits[::2].round()
    return logits


def assert_same_routing(actual: Routing, expected: Routing) -> None:
    for name in ("tokens", "expert_starts", "pairs"):
        left, right = getattr(actual, name), getattr(expected, name)
        assert left.dtype == right.dtype, name
        assert torch.equal(left, right), name
    torch.testing.assert_close(actual.weights, expected.weights, rtol=2e-6, atol=1e-12)
