"""GGUF blocks taken apart for the GPU: codes in one tensor, their scales in another, minimums in a third.

Codes of 4 bits, or of 8 for formats with more than 4, lie in 32-bit words along a row, the first one in the
lowest bits. A group of 16 or 32 codes has a scale, float16, and in some formats a minimum: a value is
``scale * code + minimum``, or ``scale * (code - offset)`` where there are no minimums. Scales that a format
keeps as products are rounded to float16, 2 ** -11 of them at most. Must not know what the weights belong to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from triolet_kernels.quant import QuantTensor, check_finite
from triolet_kernels.quant_blocks import FORMATS, take_apart

__all__ = ["PackedCodes", "constants_of", "is_packable", "pack_codes", "tensors_of"]


@dataclass(frozen=True, slots=True, eq=False)
class PackedCodes:
    """``words`` (out, in * bits / 32) int32, ``scales`` (out, in / group_size) float16, ``minimums``
    like them or None: then ``offset`` is the code that stands for 0. ``shape`` (out, in)."""

    words: Tensor
    scales: Tensor
    minimums: Tensor | None
    shape: tuple[int, int]
    bits: int
    group_size: int
    offset: int


def is_packable(weight: QuantTensor) -> bool:
    return weight.kind in FORMATS


def pack_codes(weight: QuantTensor, device: torch.device) -> PackedCodes:
    """Rearrange a weight of a packable kind, on ``device``.

    Raises NotFiniteError for scales that are infinite or not numbers, in float16.
    """
    layout = FORMATS[weight.kind]
    blocks = take_apart(replace(weight, data=weight.data.to(device)))
    bits = 4 if layout.bits == 4 else 8
    scales = blocks.scales.half()
    minimums = None if blocks.minimums is None else blocks.minimums.half()
    for numbers in (scales, minimums):
        if numbers is not None:
            check_finite(numbers)
    return PackedCodes(
        words=_to_words(blocks.codes, bits),
        scales=scales,
        minimums=minimums,
        shape=weight.shape,
        bits=bits,
        group_size=layout.group_size,
        offset=layout.offset,
    )


def tensors_of(weight: Tensor | PackedCodes) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A weight, dense or in codes, as kernels take it: values or words, scales, minimums."""
    if isinstance(weight, Tensor):
        return weight, None, None
    return weight.words, weight.scales, weight.minimums


def constants_of(weight: Tensor | PackedCodes) -> dict[str, int]:
    """What kernels of a weight, dense or in codes, are compiled for."""
    if isinstance(weight, Tensor):
        return {"BITS": 0, "GROUP": 0, "OFFSET": 0}
    return {"BITS": weight.bits, "GROUP": weight.group_size, "OFFSET": weight.offset}


def _to_words(codes: Tensor, bits: int) -> Tensor:
    if bits == 4:
        codes = codes[:, 0::2] | codes[:, 1::2] << 4
    return codes.contiguous().view(torch.int32)
