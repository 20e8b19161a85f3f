"""Linear layers and embedding tables through torch's own fast CPU paths.

bfloat16 goes to oneDNN with the weight reordered once, at load; float32 to the same with float32 weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.quant import QuantTensor

__all__ = ["PackedLinear", "embedding", "linear", "pack_embedding", "pack_linear"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """``weight`` (out, in), in oneDNN's own order if ``is_reordered``; ``bias`` (out,)."""

    weight: Tensor
    bias: Tensor | None
    is_reordered: bool


def pack_linear(weight: Tensor | QuantTensor, bias: Tensor | None, dtype: torch.dtype) -> PackedLinear:
    dense = _dense(weight, dtype)
    is_reordered = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if is_reordered:
        dense = torch.ops.mkldnn._reorder_linear_weight(dense, None)
    return PackedLinear(dense, None if bias is None else bias.to(dtype), is_reordered)


def linear(x: Tensor, packed: PackedLinear) -> Tensor:
    if packed.is_reordered:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed.weight, packed.bias, "none", [], "")
        return result
    return functional.linear(x, packed.weight, packed.bias)


def pack_embedding(weight: Tensor | QuantTensor, dtype: torch.dtype) -> Tensor:
    return _dense(weight, dtype)


def embedding(token_ids: Tensor, packed: Tensor) -> Tensor:
    return functional.embedding(token_ids, packed)


def _dense(weight: Tensor | QuantTensor, dtype: torch.dtype) -> Tensor:
    return (weight.dequantize() if isinstance(weight, QuantTensor) else weight).to(dtype).contiguous()
