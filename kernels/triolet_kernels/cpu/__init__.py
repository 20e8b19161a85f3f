"""The CPU implementation: C++ kernels where they were built, torch's own fast paths for the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.cpu.activation import ActivationKernels
from triolet_kernels.cpu.attention import AttentionKernels
from triolet_kernels.cpu.drawing import DrawingKernels
from triolet_kernels.cpu.experts import ExpertKernels, Packed
from triolet_kernels.cpu.linear import LinearKernels, PackedEmbedding, PackedLinear
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.cpu.norm import NormKernels
from triolet_kernels.cpu.program import ProgramRunner
from triolet_kernels.cpu.rows import RowKernels
from triolet_kernels.expert_ops import Routing
from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, GatedActivation, RankedTokens
from triolet_kernels.quant import QuantTensor
from triolet_kernels.steps import StepRunner

__all__ = ["CpuOps"]


class CpuOps:
    """Every operation of :class:`triolet_kernels.ops.Ops`, for float32 and bfloat16 on a CPU."""

    def __init__(self, native: NativeLibrary) -> None:
        self.name = f"cpu-{native.isa}"
        self._native = native
        self._linear = LinearKernels(native)
        self._rows = RowKernels(native)
        self._experts = ExpertKernels(native, self._linear, self._rows)
        self._attention = AttentionKernels(native)
        self._norm = NormKernels(native)
        self._activation = ActivationKernels(native)
        self._drawing = DrawingKernels(native)

    def pack_linear(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        return self._linear.pack_linear(weight, bias, dtype)

    def pack_vocabulary(
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        return self._linear.pack_linear(weight, bias, dtype)

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        return self._linear.linear(x, packed)

    def gated_linear(self, x: Tensor, packed: PackedLinear, activation: GatedActivation) -> Tensor:
        result = self._linear.gated_linear(x, packed, activation)
        if result is not None:
            return result
        return (self.silu_mul if activation == "silu" else self.gelu_mul)(self.linear(x, packed))

    def pack_router(self, weight: Tensor) -> PackedLinear:
        return self._experts.pack_router(weight)

    def route(self, x: Tensor, router: PackedLinear, num_chosen: int, *, is_normalized: bool) -> Routing:
        return self._experts.route(x, router, num_chosen, is_normalized=is_normalized)

    def pack_experts(self, weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> Packed:
        return self._experts.pack_experts(weights, dtype)

    def expert_linear(self, x: Tensor, packed: Packed, expert_starts: Tensor) -> Tensor:
        return self._experts.expert_linear(x, packed, expert_starts)

    def sum_experts(self, x: Tensor, routing: Routing) -> Tensor:
        return self._experts.sum_experts(x, routing)

    def add_shared_expert(self, total: Tensor, shared: Tensor, x: Tensor, gate: PackedLinear) -> None:
        self._experts.add_shared_expert(total, shared, x, gate)

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:
        return self._linear.pack_embedding(weight, dtype)

    def embedding(self, token_ids: Tensor, packed: PackedEmbedding) -> Tensor:
        return self._linear.embedding(token_ids, packed)

    @property
    def uses_torch_threads(self) -> bool:
        return self._linear.uses_torch_threads

    def take_rows(self, x: Tensor, rows: Tensor) -> Tensor:
        return self._rows.take_rows(x, rows)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
        return self._norm.rms_norm(x, weight, eps, dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm.add_rms_norm(x, residual, weight, eps)

    def norm_columns(self, x: Tensor, first: int, weight: Tensor, eps: float) -> None:
        self._norm.norm_columns(x, first, weight, eps)

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
        return self._attention.rotary_and_cache(
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
        return self._attention.paged_attention(
            query, key_cache, value_cache, batch, scale=scale, window=window
        )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return self._activation.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return self._activation.gelu_mul(gate_up)

    def to_float32(self, x: Tensor) -> Tensor:
        return self._rows.to_float32(x)

    def draw(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None
    ) -> DrawnTokens:
        return self._drawing.draw(logits, settings, rows)

    def draw_masked(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> DrawnTokens:
        return self._drawing.draw_masked(logits, settings, rows, masks)

    def rank(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], count: int
    ) -> RankedTokens:
        return self._drawing.rank(logits, settings, rows, count)

    def draw_others(
        self,
        logits: Tensor,
        rows: NDArray[np.int64],
        token_ids: NDArray[np.int64],
        temperatures: NDArray[np.float64],
        uniforms: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        return self._drawing.draw_others(logits, rows, token_ids, temperatures, uniforms)

    def step_runner(self) -> StepRunner:
        return ProgramRunner(self._native)
