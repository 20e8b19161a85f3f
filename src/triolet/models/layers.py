"""The parts a model is made of: linear layers, embeddings and norms, each a thin object over ``Ops``.

Projections that read the same input are fused into one matrix here, quantised ones too. Nothing in this
module knows an architecture, a tensor's name or a file format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet_kernels.quant import QuantTensor
from triolet_kernels.recode import to_q8_0

if TYPE_CHECKING:
    from triolet_kernels.ops import GatedActivation, Ops

__all__ = ["Embedding", "Linear", "RMSNorm", "SummedLinear", "fuse_rows", "to_dense"]


class Linear:
    """``x (T, in)`` → ``(T, out)``: a packed weight and its bias; ``is_vocabulary`` if it makes logits."""

    def __init__(
        self,
        ops: Ops,
        weight: Tensor | QuantTensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        *,
        is_vocabulary: bool = False,
    ) -> None:
        self._linear, self._gated_linear = ops.linear, ops.gated_linear
        pack = ops.pack_vocabulary if is_vocabulary else ops.pack_linear
        self._packed = pack(weight, bias, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, self._packed)

    def gated(self, x: Tensor, activation: GatedActivation) -> Tensor:
        """Of gates, then ups: ``activation(gate) * up``, ``(T, out / 2)``."""
        return self._gated_linear(x, self._packed, activation)


class SummedLinear:
    """A linear layer of which this shard has the weights of a part of the inputs: shards' outputs add up.

    Source: Shoeybi et al. 2019, "Megatron-LM", section 3 (a row-parallel linear layer).
    """

    def __init__(self, linear: Linear, sum_shards: Callable[[Tensor], Tensor]) -> None:
        self._linear = linear
        self._sum_shards = sum_shards

    def __call__(self, x: Tensor) -> Tensor:
        return self._sum_shards(self._linear(x))


class Embedding:
    """``token_ids (T,)`` int64 → ``(T, hidden)``, times ``multiplier``.

    The multiplier is rounded to ``dtype`` first, because models that have one were trained that way.
    """

    def __init__(
        self, ops: Ops, weight: Tensor | QuantTensor, dtype: torch.dtype, multiplier: float = 1.0
    ) -> None:
        self._embedding = ops.embedding
        self._packed = ops.pack_embedding(weight, dtype)
        self._multiplier = torch.tensor(multiplier, dtype=dtype).item()

    def __call__(self, token_ids: Tensor) -> Tensor:
        rows = self._embedding(token_ids, self._packed)
        return rows if self._multiplier == 1.0 else rows.mul_(self._multiplier)


class RMSNorm:
    """Root mean square norm over the last dimension; ``weight`` is the plain multiplier.

    What comes out is of ``dtype``; the residual that goes in may be float32.
    """

    def __init__(self, ops: Ops, weight: Tensor, eps: float, dtype: torch.dtype) -> None:
        self._rms_norm = ops.rms_norm
        self._add_rms_norm = ops.add_rms_norm
        self._weight = weight
        self._eps = eps
        self._dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        return self._rms_norm(x, self._weight, self._eps, self._dtype)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add ``x`` to ``residual`` (float32) in place; → the norm of the sum."""
        return self._add_rms_norm(x, residual, self._weight, self._eps)


def fuse_rows(weights: Sequence[Tensor | QuantTensor], dtype: torch.dtype) -> Tensor | QuantTensor:
    """Stack weights ``(out_i, in)`` into one, for activations of ``dtype``.

    It stays quantised where all are: in their own format if they share one, else in 8 bits (see
    :func:`triolet_kernels.recode.to_q8_0`), but for float32, which asks for exact values.
    """
    if len(weights) == 1:
        return weights[0]
    quantised = [weight for weight in weights if isinstance(weight, QuantTensor)]
    if len(quantised) == len(weights):
        if len({weight.kind for weight in quantised}) == 1:
            return QuantTensor.concatenate(quantised)
        if dtype != torch.float32:
            return QuantTensor.concatenate([to_q8_0(weight) for weight in quantised])
    dense = [to_dense(weight) for weight in weights]
    wide = torch.float32 if quantised else dense[0].dtype
    return torch.cat([weight.to(wide) for weight in dense])


def to_dense(weight: Tensor | QuantTensor) -> Tensor:
    """The weight as an ordinary tensor: float32 where it was quantised, else as it is."""
    return weight.dequantize() if isinstance(weight, QuantTensor) else weight
