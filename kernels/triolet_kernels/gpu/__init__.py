"""The GPU implementation: Triton kernels, and the reference (torch on the device) where there is none.

Imported only for a device that is a GPU: importing Triton takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.device_draws import (
    DeviceAdjustments,
    DeviceDraws,
    DeviceDrawSettings,
    DeviceLogprobs,
)
from triolet_kernels.expert_ops import Routing
from triolet_kernels.gpu.activation import ActivationKernels
from triolet_kernels.gpu.adjusting import AdjustingKernels
from triolet_kernels.gpu.attention import AttentionKernels
from triolet_kernels.gpu.drawing import DrawingKernels
from triolet_kernels.gpu.embedding import EmbeddingKernels, PackedEmbedding
from triolet_kernels.gpu.experts import ExpertKernels, PackedExperts
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.linear import LinearKernels, PackedLinear
from triolet_kernels.gpu.logprobs import LogprobKernels
from triolet_kernels.gpu.norm import NormKernels
from triolet_kernels.gpu.rotary import RotaryKernels
from triolet_kernels.gpu.routing import RoutingKernels
from triolet_kernels.gpu.rows import RowKernels
from triolet_kernels.gpu.scaled_linear import PackedScaled, ScaledLinearKernels, Scheme
from triolet_kernels.ops import AttentionBatch, DrawnTokens, DrawSettings, GatedActivation
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference import ReferenceOps

__all__ = ["GpuOps"]


class GpuOps(ReferenceOps):
    """Every operation of :class:`triolet_kernels.ops.Ops` on one GPU.

    None of them waits for the device but those that hand out arrays, and what they allocate depends on shapes
    and on the plain integers of a batch alone: so all the others can be captured in a graph.
    """

    uses_torch_threads = False

    def __init__(
        self, device: GpuDevice, *, is_batch_invariant: bool = False, scheme: str | None = None
    ) -> None:
        """``is_batch_invariant``: what linear layers and attention make of a token is the same whatever is
        computed beside it, other tokens of its sequence included.

        ``scheme``: how weights of 16 bits in linear layers are rounded to 8, and their inputs with them; not
        those of experts and of the vocabulary. ValueError if the device does not multiply such.
        """
        self.name = f"gpu-{device.configurations.architecture}"
        self.is_batch_invariant = is_batch_invariant
        self._rows = RowKernels(device)
        self._attention = AttentionKernels(device, is_batch_invariant=is_batch_invariant)
        self._rotary = RotaryKernels(device)
        self._norm = NormKernels(device)
        self._activation = ActivationKernels(device)
        self._linear = LinearKernels(device, is_batch_invariant=is_batch_invariant)
        self._scaled = ScaledLinearKernels(device)
        self._scheme = None if scheme is None else self._scaled.scheme_named(scheme)
        self._experts = ExpertKernels(device, is_batch_invariant=is_batch_invariant)
        self._routing = RoutingKernels(device)
        self._embedding = EmbeddingKernels(device)
        self._drawing = DrawingKernels(device)
        self._adjusting = AdjustingKernels(device)
        self._logprobs = LogprobKernels(device)

    def pack_linear(  # type: ignore[override]
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear | PackedScaled:
        if self._scheme is not None and isinstance(weight, Tensor) and dtype != torch.float32:
            return self._scaled.pack(weight, bias, self._scheme)
        return self._linear.pack_linear(weight, bias, dtype)

    def pack_vocabulary(  # type: ignore[override]
        self, weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype
    ) -> PackedLinear:
        return self._linear.pack_linear(weight, bias, dtype)

    def pack_scaled_linear(self, weight: Tensor, bias: Tensor | None, scheme: Scheme) -> PackedScaled:
        """Round a weight ``(out, in)`` to 8 bits for :meth:`linear`, which then rounds its inputs as well."""
        return self._scaled.pack(weight, bias, scheme)

    def linear(self, x: Tensor, packed: PackedLinear | PackedScaled) -> Tensor:  # type: ignore[override]
        if isinstance(packed, PackedScaled):
            return self._scaled.linear(x, packed)
        return self._linear.linear(x, packed)

    def gated_linear(  # type: ignore[override]
        self, x: Tensor, packed: PackedLinear | PackedScaled, activation: GatedActivation
    ) -> Tensor:
        return (self.silu_mul if activation == "silu" else self.gelu_mul)(self.linear(x, packed))

    def pack_router(self, weight: Tensor) -> PackedLinear:  # type: ignore[override]
        return self._linear.pack_linear(weight, None, torch.float32)

    def route(self, x: Tensor, router: PackedLinear, num_chosen: int, *, is_normalized: bool) -> Routing:  # type: ignore[override]
        logits = self._linear.linear(x.float(), router)
        return self._routing.route(logits, num_chosen, is_normalized=is_normalized)

    def pack_experts(self, weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> PackedExperts:  # type: ignore[override]
        return self._experts.pack_experts(weights, dtype)

    def expert_linear(self, x: Tensor, packed: PackedExperts, expert_starts: Tensor) -> Tensor:  # type: ignore[override]
        return self._experts.expert_linear(x, packed, expert_starts)

    def sum_experts(self, x: Tensor, routing: Routing) -> Tensor:
        return self._routing.sum_experts(x, routing)

    def add_shared_expert(self, total: Tensor, shared: Tensor, x: Tensor, gate: PackedLinear) -> None:  # type: ignore[override]
        self._routing.add_shared_expert(total, shared, self._linear.linear(x.float(), gate))

    def pack_embedding(self, weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:  # type: ignore[override]
        return self._embedding.pack_embedding(weight, dtype)

    def embedding(self, token_ids: Tensor, packed: PackedEmbedding) -> Tensor:  # type: ignore[override]
        return self._embedding.embedding(token_ids, packed)

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
        return self._rotary.rotary_and_cache(
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

    def draw(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None
    ) -> DrawnTokens:
        return self._drawing.draw(logits, settings, rows)

    def draw_masked(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> DrawnTokens:
        return self._drawing.draw_masked(logits, settings, rows, masks)

    def adjust_on_device(self, logits: Tensor, adjustments: DeviceAdjustments) -> None:
        """Biases, penalties and masks on ``logits (R, V)`` float32, in place."""
        self._adjusting.adjust_on_device(logits, adjustments)

    def draw_on_device(self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
        """Draw a token from each row of ``logits (R, V)`` float32 into ``draws``."""
        self._drawing.draw_on_device(logits, settings, draws)

    def note_on_device(self, adjustments: DeviceAdjustments, token_ids: Tensor) -> None:
        """Count ``token_ids (R,)``, one of each row, in the histories of the rows that have one."""
        self._adjusting.note_on_device(adjustments, token_ids)

    def logprobs_on_device(
        self, logits: Tensor, draws: DeviceDraws, logprobs: DeviceLogprobs, *, is_processed: bool = False
    ) -> None:
        """Log-probabilities of what was drawn and of the most likely tokens; see
        :meth:`triolet_kernels.gpu.logprobs.LogprobKernels.logprobs_on_device`."""
        self._logprobs.logprobs_on_device(logits, draws, logprobs, is_processed=is_processed)
