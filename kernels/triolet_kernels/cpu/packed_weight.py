"""GGUF blocks rearranged for the compiled linear kernel: same codes, scales and minimums, another order.

The order is stated in ``quantized_rows.h``: panels of 32 outputs, in each its blocks of 32 inputs, one after
the other. This module must not know what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from triolet_kernels.quant import QuantTensor, check_finite

__all__ = ["PackedWeight", "decode_rows", "format_of", "is_packable", "pack"]

_BLOCK = 32
_HALVES, _LANES = 2, 16
_PANEL = _HALVES * _LANES


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


def pack(weight: QuantTensor) -> PackedWeight:
    """Rearrange a weight of a packable kind; its rows are padded with zeros to whole panels.

    Raises NotFiniteError.
    """
    layout = _LAYOUTS[weight.kind]
    num_outputs, width = weight.shape
    num_panels, num_blocks = -(-num_outputs // _PANEL), width // _BLOCK
    padded = functional.pad(weight.data, (0, 0, 0, num_panels * _PANEL - num_outputs))
    blocks = padded.view(num_panels, _HALVES, _LANES, num_blocks, -1)
    codes = blocks[..., layout.codes_start :]
    if layout.bits == 8:
        codes = codes ^ 0x80  # from signed to unsigned with an offset of 128
    scales = blocks[..., : layout.codes_start]
    check_finite(scales.contiguous().view(torch.float16))
    data = torch.cat([_by_output(codes, 4), _by_output(scales, 2)], dim=-1)
    return PackedWeight(data, weight.shape, format_of(weight))


def _by_output(fields: Tensor, size: int) -> Tensor:
    """``(panels, 2, 16, blocks, n * size)`` → ``(panels, blocks, bytes)``: field by field."""
    split = fields.reshape(*fields.shape[:-1], -1, size)
    return split.permute(0, 3, 4, 1, 2, 5).flatten(2)
