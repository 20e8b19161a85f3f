"""Dense weights rearranged for the compiled linear kernel: in panels, in the number format of their inputs.

The order of a panel is stated in ``dense_linear.cpp``. This module must not know what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["PackedDense", "pack_dense"]

_HALF = 16
_PANEL = 2 * _HALF
_DEPTHS = {torch.float32: 1, torch.bfloat16: 32}
"""What the width is padded to."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedDense:
    """``data`` (panels, 2, words, 16) int32, words of one float32 or two bfloat16; ``shape`` (out, in)."""

    data: Tensor
    shape: tuple[int, int]
    format: tuple[()] = ()


def pack_dense(weight: Tensor, dtype: torch.dtype) -> PackedDense:
    """Rearrange a weight ``(out, in)`` for inputs of ``dtype``; the argument is not kept."""
    num_outputs, width = weight.shape
    padding = (0, -width % _DEPTHS[dtype], 0, -num_outputs % _PANEL)
    padded = functional.pad(weight.to(dtype), padding)
    words = padded.view(torch.int32).view(len(padded) // _PANEL, 2, _HALF, -1)
    panels = words.transpose(2, 3).contiguous()
    return PackedDense(panels, (num_outputs, width))
