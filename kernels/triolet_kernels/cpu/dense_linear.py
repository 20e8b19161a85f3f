"""Dense linear layers through the compiled kernels: weights in panels, in the number format of their inputs.

A row's result has the same bits whatever the rows beside it. The order of a panel is stated in
``dense_linear.cpp``. This module must not know what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.cpu.loader import NativeLibrary

__all__ = ["DenseLinearKernels", "PackedDense"]

_HALF = 16
_PANEL = 2 * _HALF
_DEPTHS = {torch.float32: 1, torch.bfloat16: 32}
"""What the width is padded to."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedDense:
    """``data`` (panels, 2, words, 16) int32, words of one float32 or two bfloat16; ``shape`` (out, in)."""

    data: Tensor
    shape: tuple[int, int]


class DenseLinearKernels:
    """The dense linear kernels of one library."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._kernels = native.kernels("dense_linear")

    def __contains__(self, dtype: torch.dtype) -> bool:
        """Whether there is a kernel for this number format."""
        return dtype in self._kernels

    def pack(self, weight: Tensor, dtype: torch.dtype) -> PackedDense:
        """Rearrange a weight ``(out, in)`` for inputs of ``dtype``; the argument is not kept."""
        num_outputs, width = weight.shape
        padding = (0, -width % _DEPTHS[dtype], 0, -num_outputs % _PANEL)
        padded = functional.pad(weight.to(dtype), padding)
        words = padded.view(torch.int32).view(len(padded) // _PANEL, 2, _HALF, -1)
        panels = words.transpose(2, 3).contiguous()
        return PackedDense(panels, (num_outputs, width))

    def linear(self, x: Tensor, packed: PackedDense, bias: Tensor | None) -> Tensor:
        """``x (T, in)`` times the weight, plus ``bias (out,)`` float32 → ``(T, out)``."""
        num_rows, (num_outputs, width) = x.shape[0], packed.shape
        output = x.new_empty(num_rows, num_outputs)
        self._kernels[x.dtype](
            x.data_ptr(),
            packed.data.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            num_rows,
            width,
            num_outputs,
            *self._team,
        )
        return output
