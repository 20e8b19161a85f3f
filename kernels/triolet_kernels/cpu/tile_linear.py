"""Quantised linear layers on matrix tiles: weights rearranged once, at load, and the call of the kernel.

The order of a panel is stated in ``panel_codes.h``. This module must not know what the weights belong to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.quant import QuantTensor

__all__ = ["PackedTiles", "TileLinearKernels"]

_BLOCK = 32
_HALVES, _LANES = 2, 16
_PANEL = _HALVES * _LANES
_RUNS, _NIBBLES, _PAIRS, _PAIR = 4, 4, 16, 2

_KINDS = ("Q4_0", "Q4_1", "Q8_0")
"""The GGUF formats the kernel takes, in the order of the numbers it knows them by."""

_LARGEST = 2.0**15
"""Packed weights come close to this, so that even the smallest are normal numbers in float16."""

_KERNEL_FACTOR = 2.0**-16
"""What the kernel makes of a weight of 1."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedTiles:
    """``data`` uint8 (panels, blocks, bytes); ``shape`` (out, in); ``factor`` puts products in scale."""

    data: Tensor
    shape: tuple[int, int]
    kind: int
    factor: float


class TileLinearKernels:
    """The kernels of one library for matrix tiles, which few CPUs have."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._kernels = native.kernels("tile_linear")

    def takes(self, weight: QuantTensor, dtype: torch.dtype) -> bool:
        """Whether there is a kernel for such a weight and inputs of ``dtype``."""
        return dtype in self._kernels and weight.kind in _KINDS

    def pack(self, weight: QuantTensor) -> PackedTiles:
        """Rearrange a weight ``(out, in)``; its rows are padded with zeros to whole panels."""
        num_outputs, width = weight.shape
        padded = functional.pad(weight.data, (0, 0, 0, -num_outputs % _PANEL))
        blocks = padded.view(-1, _HALVES, _LANES, width // _BLOCK, padded.shape[1] * _BLOCK // width)
        num_scales = 2 if weight.kind == "Q4_1" else 1
        scales = blocks[..., : 2 * num_scales].contiguous().view(torch.float16).float()
        codes = blocks[..., 2 * num_scales :]
        factor = _power_of_two_for(scales, 128 if weight.kind == "Q8_0" else 16)
        in_order = _bytes_in_order(codes) if weight.kind == "Q8_0" else _nibbles_in_order(codes)
        larger_scales = (scales * factor).half().permute(4, 0, 3, 1, 2).flatten(3).contiguous()
        data = torch.cat([in_order, *larger_scales.view(torch.uint8)], dim=-1)
        return PackedTiles(data, weight.shape, _KINDS.index(weight.kind), 1 / (factor * _KERNEL_FACTOR))

    def linear(self, x: Tensor, weight: PackedTiles, bias: Tensor | None) -> Tensor:
        """``x (T, in)`` times the weight, plus ``bias (out,)`` float32 → ``(T, out)``."""
        num_rows, (num_outputs, width) = x.shape[0], weight.shape
        output = x.new_empty(num_rows, num_outputs)
        self._kernels[x.dtype](
            x.data_ptr(),
            weight.data.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            num_rows,
            width,
            num_outputs,
            weight.kind,
            weight.factor,
            *self._team,
        )
        return output


def _power_of_two_for(scales: Tensor, largest_code: int) -> float:
    """What brings the weights of ``scales`` (…, scale and perhaps minimum) close to the largest number."""
    largest = scales[..., 0].abs().max().item() * largest_code + scales[..., 1:].abs().sum(-1).max().item()
    return 2.0 ** math.floor(math.log2(_LARGEST / largest)) if largest > 0 else _LARGEST


def _nibbles_in_order(codes: Tensor) -> Tensor:
    """``(panels, 2, 16, blocks, 16)`` bytes, of inputs i and i + 16 each → ``(panels, blocks, bytes)``."""
    inputs = torch.cat([codes & 15, codes >> 4], dim=-1)
    split = inputs.view(*inputs.shape[:4], _RUNS, _NIBBLES // 2, 2, _PAIR).permute(0, 3, 1, 4, 2, 7, 5, 6)
    return (split[..., 0] | split[..., 1] << 4).flatten(2)


def _bytes_in_order(codes: Tensor) -> Tensor:
    """``(panels, 2, 16, blocks, 32)`` bytes, one to an input → ``(panels, blocks, bytes)``."""
    return codes.reshape(*codes.shape[:4], _PAIRS, _PAIR).permute(0, 3, 1, 4, 2, 5).flatten(2)
