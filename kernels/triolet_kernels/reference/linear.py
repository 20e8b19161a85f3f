"""Linear layers and embedding tables in float32; quantised weights are dequantised when packed.

Must not know what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.quant import QuantTensor

__all__ = [
    "PackedEmbedding",
    "PackedLinear",
    "as_float32",
    "embedding",
    "linear",
    "pack_embedding",
    "pack_linear",
]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """``weight`` (out, in) and ``bias`` (out,), float32."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class PackedEmbedding:
    """``weight`` (V, hidden) float32; rows are handed out in ``dtype``."""

    weight: Tensor
    dtype: torch.dtype


def as_float32(weight: Tensor | QuantTensor) -> Tensor:
    """The values of a weight, whatever it is kept as; not copied where it is float32 already."""
    return weight.dequantize() if isinstance(weight, QuantTensor) else weight.float()


def pack_linear(weight: Tensor | QuantTensor, bias: Tensor | None) -> PackedLinear:
    return PackedLinear(as_float32(weight), None if bias is None else bias.float())


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    return functional.linear(x.float(), packed.weight, packed.bias).to(x.dtype)


def pack_embedding(weight: Tensor | QuantTensor, dtype: torch.dtype) -> PackedEmbedding:
    return PackedEmbedding(as_float32(weight), dtype)


def embedding(token_ids: Tensor, packed: PackedEmbedding) -> Tensor:
    return packed.weight[token_ids].to(packed.dtype)
