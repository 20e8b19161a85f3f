"""The reference implementation: plain torch, float32 arithmetic, results in the dtype of the input.

It says what every other implementation must compute; it must not know of any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.expert_ops import Routing
from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, GatedActivation, RankedTokens
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference import (
    activation,
    attention,
    device_adjusting,
    device_drawing,
    device_logprobs,
    drawing,
    experts,
    linear,
    norm,
    rotary,
    step,
)
from triolet_kernels.reference.experts import PackedExperts
from triolet_kernels.reference.linear import PackedEmbedding, PackedLinear
from triolet_kernels.steps import StepRunner

if TYPE_CHECKING:
    from triolet_kernels.device_draws import (
        DeviceAdjustments,
        DeviceDraws,
        DeviceDrawSettings,
        DeviceLogprobs,
    )

__all__ = ["ReferenceOps"]


class ReferenceOps:
    """Every operation of :class:`triolet_kernels.ops.Ops`, on any device."""

    name = "reference"
    uses_torch_threads = True

    def pack_linear(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        return linear.pack_linear(weight, bias)

    def pack_vocabulary(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        return linear.pack_linear(weight, bias)

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        return linear.linear(x, packed)

    def gated_linear(self, x: Tensor, packed: PackedLinear, activation: GatedActivation) -> Tensor:
        return (self.silu_mul if activation == "silu" else self.gelu_mul)(self.linear(x, packed))

    def pack_router(self, weight: Tensor) -> Tensor:
        return weight.float()

    def route(self, x: Tensor, router: Tensor, num_chosen: int, *, is_normalized: bool) -> Routing:
        return experts.route(x, router, num_chosen, is_normalized=is_normalized)

    def pack_experts(self, weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> PackedExperts:
        return experts.pack_experts(weights)

    def expert_linear(self, x: Tensor, packed: PackedExperts, expert_starts: Tensor) -> Tensor:
        return experts.expert_linear(x, packed, expert_starts)

    def sum_experts(self, x: Tensor, routing: Routing) -> Tensor:
        return experts.sum_experts(x, routing)

    def add_shared_expert(self, total: Tensor, shared: Tensor, x: Tensor, gate: Tensor) -> None:
        experts.add_shared_expert(total, shared, x.float() @ gate.T)

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:
        return linear.pack_embedding(weight, dtype)

    def embedding(self, token_ids: Tensor, packed: PackedEmbedding) -> Tensor:
        return linear.embedding(token_ids, packed)

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return x[rows]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
        return norm.rms_norm(x, weight, eps, dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.add_rms_norm(x, residual, weight, eps)

    def norm_columns(self, x: Tensor, first: int, weight: Tensor, eps: float) -> None:
        norm.norm_columns(x, first, weight, eps)

    def rotary_and_cache(
        self,
        qkv: Tensor,
        batch: AttentionBatch,
        cos_sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        *,
        num_heads: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        return rotary.rotary_and_cache(
            qkv,
            batch,
            cos_sin,
            key_cache,
            value_cache,
            num_heads=num_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=eps,
        )

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        return attention.paged_attention(query, key_cache, value_cache, batch, scale=scale, window=window)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.gelu_mul(gate_up)

    def to_float32(self, x: Tensor) -> Tensor:
        return x.float()

    def draw(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None
    ) -> DrawnTokens:
        return drawing.draw_tokens(logits, settings, rows)

    def draw_on_device(self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
        """See :mod:`triolet_kernels.device_draws`."""
        device_drawing.draw_on_device(logits, settings, draws)

    def adjust_on_device(self, logits: Tensor, adjustments: DeviceAdjustments) -> None:
        device_adjusting.adjust_on_device(logits, adjustments)

    def note_on_device(self, adjustments: DeviceAdjustments, token_ids: Tensor) -> None:
        device_adjusting.note_on_device(adjustments, token_ids)

    def logprobs_on_device(
        self, logits: Tensor, draws: DeviceDraws, logprobs: DeviceLogprobs, *, is_processed: bool = False
    ) -> None:
        device_logprobs.logprobs_on_device(logits, draws, logprobs, is_processed=is_processed)

    def draw_masked(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> DrawnTokens:
        return drawing.draw_masked(logits, settings, rows, masks)

    def rank(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], count: int
    ) -> RankedTokens:
        return drawing.rank(logits, settings, rows, count)

    def draw_others(
        self,
        logits: Tensor,
        rows: NDArray[np.int64],
        token_ids: NDArray[np.int64],
        temperatures: NDArray[np.float64],
        uniforms: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        return drawing.draw_others(logits, rows, token_ids, temperatures, uniforms)

    def step_runner(self) -> StepRunner:
        return step.PlainRunner()
