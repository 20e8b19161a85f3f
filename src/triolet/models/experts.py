"""The feed-forward networks of a mixture of experts, of which each token goes through a few.

This module knows nothing of files, of attention, or of how an operation is computed.

Source: Shazeer et al. 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from triolet.models.config import ModelConfig
    from triolet.models.weights import Weights

__all__ = ["ExpertFeedForward", "SharedExpert"]


class ExpertFeedForward:
    """The sum of what some gated feed-forward networks make of a token, as their router weighs them."""

    def __init__(self, config: ModelConfig, name: str, weights: Weights) -> None:
        assert config.experts is not None
        ops, experts = weights.ops, config.experts
        names = [f"{name}.experts.{expert}" for expert in range(experts.count)]
        self._ops = ops
        self._router = weights.router(f"{name}.gate")
        self._gate_up = weights.expert_linears([[f"{one}.gate_proj", f"{one}.up_proj"] for one in names])
        self._activation = ops.silu_mul if config.activation == "silu" else ops.gelu_mul
        self._down = weights.expert_output_linears([f"{one}.down_proj" for one in names])
        self._num_chosen = experts.num_chosen
        self._is_normalized = experts.is_normalized
        self._sum_shards = weights.sum_shards
        self._shared = SharedExpert(config, f"{name}.shared_expert", weights) if experts.shared_size else None

    def __call__(self, x: Tensor) -> Tensor:
        ops = self._ops
        routing = ops.route(x, self._router, self._num_chosen, is_normalized=self._is_normalized)
        rows = ops.take_rows(x, routing.tokens)
        rows = self._activation(ops.expert_linear(rows, self._gate_up, routing.expert_starts))
        rows = ops.expert_linear(rows, self._down, routing.expert_starts)
        total = ops.sum_experts(rows, routing)
        if self._shared is not None:
            self._shared.add_to(total, x)
        return self._sum_shards(total)

    @staticmethod
    def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Its tensors, by the end of their name."""
        assert config.experts is not None
        hidden, width, count = config.hidden_size, config.intermediate_size, config.experts.count
        shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (count, hidden)}
        for expert in range(count):
            name = f"mlp.experts.{expert}"
            shapes[f"{name}.gate_proj.weight"] = (width, hidden)
            shapes[f"{name}.up_proj.weight"] = (width, hidden)
            shapes[f"{name}.down_proj.weight"] = (hidden, width)
        if size := config.experts.shared_size:
            shapes["mlp.shared_expert_gate.weight"] = (1, hidden)
            shapes["mlp.shared_expert.gate_proj.weight"] = (size, hidden)
            shapes["mlp.shared_expert.up_proj.weight"] = (size, hidden)
            shapes["mlp.shared_expert.down_proj.weight"] = (hidden, size)
        return shapes


class SharedExpert:
    """A feed-forward network that all tokens go through, and a gate that says how much it counts (Qwen2)."""

    def __init__(self, config: ModelConfig, name: str, weights: Weights) -> None:
        self._ops = ops = weights.ops
        self._gate = weights.router(f"{name}_gate")
        self._gate_up = weights.linear(f"{name}.gate_proj", f"{name}.up_proj")
        self._activation = ops.silu_mul if config.activation == "silu" else ops.gelu_mul
        self._down = weights.partial_linear(f"{name}.down_proj")

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add to ``total (T, hidden)`` in place what it makes of ``x (T, hidden)``; in part, with shards."""
        shared = self._down(self._activation(self._gate_up(x)))
        self._ops.add_shared_expert(total, shared, x, self._gate)
