"""Blocks of GGUF formats taken apart: a code for each value, and a scale, perhaps a minimum, for each group.

A value is ``scale * code + minimum``, or ``scale * (code - offset)`` where a format has no minimums. This
module must not know how kernels want them.

Formats: ggml's ``block_q*`` structures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet_kernels.quant import BLOCKS, QuantTensor

__all__ = ["FORMATS", "BlockFormat", "Blocks", "take_apart"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """``codes (…, values)`` uint8; ``scales`` and ``minimums (…, groups)`` float32, not rounded."""

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """``bits`` of a code; values in a group; the code that stands for 0 where there are no minimums."""

    take_apart: Callable[[Tensor], Blocks]
    bits: int
    group_size: int
    offset: int = 0


def take_apart(weight: QuantTensor) -> Blocks:
    """All blocks of a weight ``(out, in)`` whose kind is one of :data:`FORMATS`, where its data is.

    Codes are ``(out, in)``, scales and minimums ``(out, in / group size)``.
    """
    num_outputs = weight.shape[0]
    blocks = FORMATS[weight.kind].take_apart(weight.data.view(num_outputs, -1, BLOCKS[weight.kind][1]))
    minimums = None if blocks.minimums is None else blocks.minimums.flatten(1)
    return Blocks(blocks.codes.flatten(1), blocks.scales.flatten(1), minimums)


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Two bytes of each block as one float16 → float32 (…, 1)."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    return torch.cat([data & 15, data >> 4], dim=-1)


def _q4_0(blocks: Tensor) -> Blocks:
    return Blocks(_nibbles(blocks[..., 2:]), _halves(blocks, 0))


def _q4_1(blocks: Tensor) -> Blocks:
    return Blocks(_nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Blocks:
    return Blocks(blocks[..., 2:] ^ 0x80, _halves(blocks, 0))


def _fifth_bits(data: Tensor) -> Tensor:
    """Bit j of four bytes belongs to code j."""
    shifts = torch.arange(8, dtype=torch.uint8, device=data.device)
    return (data[..., None] >> shifts & 1).flatten(-2) << 4


def _q5_0(blocks: Tensor) -> Blocks:
    return Blocks(_nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6]), _halves(blocks, 0))


def _q5_1(blocks: Tensor) -> Blocks:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return Blocks(codes, _halves(blocks, 0), _halves(blocks, 2))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of the eight groups of a block, from six bits each."""
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat([low & 63, high & 15 | low >> 6 << 4], dim=-1)
    minimums = torch.cat([middle & 63, high >> 4 | middle >> 6 << 4], dim=-1)
    return _halves(blocks, 0) * scales, -_halves(blocks, 2) * minimums


def _k_nibbles(data: Tensor) -> Tensor:
    """128 bytes: of each 32, the low nibbles are a group, and the high ones the next."""
    return _nibbles(data.view(*data.shape[:-1], 4, 32)).flatten(-2)


def _q4_k(blocks: Tensor) -> Blocks:
    return Blocks(_k_nibbles(blocks[..., 16:]), *_k_scales(blocks))


def _q5_k(blocks: Tensor) -> Blocks:
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    fifth = (blocks[..., None, 16:48] >> shifts & 1).flatten(-2) << 4
    return Blocks(_k_nibbles(blocks[..., 48:]) | fifth, *_k_scales(blocks))


def _q6_k(blocks: Tensor) -> Blocks:
    low = _nibbles(blocks[..., :128].view(*blocks.shape[:-1], 2, 64))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[..., 128:192].view(*blocks.shape[:-1], 2, 1, 32) >> shifts & 3).flatten(-2) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float()
    return Blocks((low | high).flatten(-2), _halves(blocks, 208) * scales)


FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(_q4_0, bits=4, group_size=32, offset=8),
    "Q4_1": BlockFormat(_q4_1, bits=4, group_size=32),
    "Q5_0": BlockFormat(_q5_0, bits=5, group_size=32, offset=16),
    "Q5_1": BlockFormat(_q5_1, bits=5, group_size=32),
    "Q8_0": BlockFormat(_q8_0, bits=8, group_size=32, offset=128),
    "Q4_K": BlockFormat(_q4_k, bits=4, group_size=32),
    "Q5_K": BlockFormat(_q5_k, bits=5, group_size=32),
    "Q6_K": BlockFormat(_q6_k, bits=6, group_size=16, offset=32),
}
"""The formats that can be taken apart, by their GGUF names."""
