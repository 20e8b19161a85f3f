"""GGUF blocks rearranged for the linear kernel on matrix tiles: same codes, larger scales, another order.

The order of a panel is stated in ``panel_codes.h``. This module must not know what the weights belong to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet_kernels.cpu.packed_weight import runs_of_panels
from triolet_kernels.cpu.weight_memory import WeightMemory
from triolet_kernels.quant import QuantTensor, check_finite

__all__ = ["PANEL", "PackedTiles", "pack_tiles"]

_HALVES, _LANES = 2, 16
PANEL = _HALVES * _LANES
"""Outputs of a panel."""

_RUNS, _NIBBLES, _PAIRS, _PAIR = 4, 4, 16, 2

_KINDS = ("Q4_0", "Q4_1", "Q8_0")
"""The GGUF formats the kernel takes, in the order of the numbers it knows them by."""

_LARGEST = 2.0**15
"""Packed weights come close to this, so that even the smallest are normal numbers in float16."""

_KERNEL_FACTOR = 2.0**-16
"""What the kernel makes of a weight of 1."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedTiles:
    """``data`` uint8 (panels, blocks, bytes); ``shape`` (out, in).

    ``format``: the kernel's number of the kind, and the factor that puts products in scale.
    """

    data: Tensor
    shape: tuple[int, int]
    format: tuple[int, float]


def pack_tiles(weight: QuantTensor, memory: WeightMemory) -> PackedTiles:
    """Rearrange a weight ``(out, in)``, into ``memory``; its rows are padded with zeros to whole panels.

    Raises NotFiniteError.
    """
    has_bytes = weight.kind == "Q8_0"
    runs = [_scales_of(blocks, weight.kind) for blocks in runs_of_panels(weight)]
    factor = _power_of_two_for(torch.cat(runs), 128 if has_bytes else 16)
    panels = (
        _pack_panels(blocks, scales * factor, _bytes_in_order if has_bytes else _nibbles_in_order)
        for blocks, scales in zip(runs_of_panels(weight), runs, strict=True)
    )
    data = memory.join(panels, -(-weight.shape[0] // PANEL))
    return PackedTiles(data, weight.shape, (_KINDS.index(weight.kind), 1 / (factor * _KERNEL_FACTOR)))


def _scales_of(blocks: Tensor, kind: str) -> Tensor:
    """``(panels, 2, 16, blocks, n)`` float32: the scale of each block, and its minimum if there is one."""
    num_scales = 2 if kind == "Q4_1" else 1
    scales = blocks[..., : 2 * num_scales].contiguous().view(torch.float16).float()
    check_finite(scales)
    return scales


def _pack_panels(blocks: Tensor, scales: Tensor, in_order: Callable[[Tensor], Tensor]) -> Tensor:
    codes = blocks[..., 2 * scales.shape[-1] :]
    by_output = scales.half().permute(4, 0, 3, 1, 2).flatten(3).contiguous()
    return torch.cat([in_order(codes), *by_output.view(torch.uint8)], dim=-1)


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
