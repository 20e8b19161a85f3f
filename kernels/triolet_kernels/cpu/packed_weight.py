"""GGUF blocks rearranged for the compiled linear kernel: same codes, scales and minimums, another order.

The order is stated in ``quantized_rows.h``: panels of 32 outputs, in each its blocks of 32 inputs, one after
the other. This module must not know what the weights belong to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.cpu.weight_memory import WeightMemory
from triolet_kernels.quant import BLOCKS, QuantTensor, check_finite

__all__ = ["PackedWeight", "decode_rows", "format_of", "is_packable", "pack", "runs_of_panels"]

_BLOCK = 32
_HALVES, _LANES = 2, 16
_PANEL = _HALVES * _LANES
_BYTES_AT_A_TIME = 48 << 20
"""glibc gives pieces of more than 32 MB back to the system; of smaller ones it keeps a hundred megabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """``data`` uint8 (panels, blocks, bytes); ``shape`` (out, in).

    ``format``: bits of a code, and the code that stands for 0, itself 0 if minimums are kept.
    """

    data: Tensor
    shape: tuple[int, int]
    format: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where things lie in a block of a GGUF format, in bytes; value = scale * (code - offset) + minimum."""

    bits: int
    offset: int
    codes_start: int


_LAYOUTS = {
    "Q4_0": _Layout(bits=4, offset=8, codes_start=2),
    "Q4_1": _Layout(bits=4, offset=0, codes_start=4),
    "Q8_0": _Layout(bits=8, offset=128, codes_start=2),
}


def is_packable(weight: QuantTensor) -> bool:
    return weight.kind in _LAYOUTS


def format_of(weight: QuantTensor) -> tuple[int, int]:
    """Of a packable weight; see :class:`PackedWeight`."""
    layout = _LAYOUTS[weight.kind]
    return layout.bits, layout.offset


def decode_rows(weight: QuantTensor) -> Tensor:
    """All values of a packable weight, float32: quick for a few rows, where ``dequantize`` is for many."""
    layout = _LAYOUTS[weight.kind]
    blocks = weight.data.view(weight.shape[0], weight.shape[1] // _BLOCK, -1)
    scales = blocks[..., : layout.codes_start].contiguous().view(torch.float16).float()
    codes = blocks[..., layout.codes_start :]
    if layout.bits == 8:
        values = codes.view(torch.int8).float()
    else:
        values = torch.cat([codes & 15, codes >> 4], dim=-1).float() - layout.offset
    values *= scales[..., :1]
    if layout.offset == 0:
        values += scales[..., 1:]
    return values.flatten(1)


def runs_of_panels(weight: QuantTensor) -> Iterator[Tensor]:
    """The data of a packable weight, some panels at a time ``(panels, 2, 16, blocks, bytes)``, padded with
    zeros: spreading out all of a vocabulary would take several times its size.
    """
    num_rows = max(1, _BYTES_AT_A_TIME // (weight.data.shape[1] * _PANEL)) * _PANEL
    for start in range(0, weight.shape[0], num_rows):
        rows = weight.data[start : start + num_rows]
        padded = functional.pad(rows, (0, 0, 0, -len(rows) % _PANEL))
        yield padded.view(-1, _HALVES, _LANES, weight.shape[1] // _BLOCK, BLOCKS[weight.kind][1])


def pack(weight: QuantTensor, memory: WeightMemory) -> PackedWeight:
    """Rearrange a weight of a packable kind, into ``memory``; its rows are padded to whole panels.

    Raises NotFiniteError.
    """
    layout = _LAYOUTS[weight.kind]
    panels = (_pack_panels(blocks, layout) for blocks in runs_of_panels(weight))
    data = memory.join(panels, -(-weight.shape[0] // _PANEL))
    return PackedWeight(data, weight.shape, format_of(weight))


def _pack_panels(blocks: Tensor, layout: _Layout) -> Tensor:
    codes = blocks[..., layout.codes_start :]
    if layout.bits == 8:
        codes = codes ^ 0x80  # from signed to unsigned with an offset of 128
    scales = blocks[..., : layout.codes_start]
    check_finite(scales.contiguous().view(torch.float16))
    return torch.cat([_by_output(codes, 4), _by_output(scales, 2)], dim=-1)


def _by_output(fields: Tensor, size: int) -> Tensor:
    """``(panels, 2, 16, blocks, n * size)`` → ``(panels, blocks, bytes)``: field by field."""
    split = fields.reshape(*fields.shape[:-1], -1, size)
    return split.permute(0, 3, 4, 1, 2, 5).flatten(2)
