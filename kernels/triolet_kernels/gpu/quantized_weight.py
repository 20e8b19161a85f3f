"""GGUF blocks taken apart for the GPU: codes in one tensor, their scales in another, minimums in a third.

Codes of 4 bits, or of 8 for formats with more than 4, lie in 32-bit words along a row, the first one in the
lowest bits. A group of 16 or 32 codes has a scale, float16, and in some formats a minimum: a value is
``scale * code + minimum``, or ``scale * (code - offset)`` where there are no minimums. Scales that a format
keeps as products are rounded to float16, 2 ** -11 of them at most. Must not know what the weights belong to.

Formats: ggml's ``block_q*`` structures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet_kernels.quant import QuantTensor, check_finite

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


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Of all blocks: ``codes (…, values)`` uint8, ``scales`` and ``minimums (…, groups)`` float32."""

    codes: Tensor
    scales: Tensor
    minimums: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Format:
    take_apart: Callable[[Tensor], _Blocks]
    bits: int
    group_size: int
    offset: int = 0


def is_packable(weight: QuantTensor) -> bool:
    return weight.kind in _FORMATS


def pack_codes(weight: QuantTensor, device: torch.device) -> PackedCodes:
    """Rearrange a weight of a packable kind, on ``device``.

    Raises NotFiniteError for scales that are infinite or not numbers, in float16.
    """
    layout = _FORMATS[weight.kind]
    num_outputs, width = weight.shape
    block_bytes = weight.data.shape[1] // (width // _block_size(weight.kind))
    blocks = layout.take_apart(weight.data.to(device).view(num_outputs, -1, block_bytes))
    scales = blocks.scales.flatten(1).half()
    minimums = None if blocks.minimums is None else blocks.minimums.flatten(1).half()
    for numbers in (scales, minimums):
        if numbers is not None:
            check_finite(numbers)
    return PackedCodes(
        words=_to_words(blocks.codes.flatten(1), layout.bits),
        scales=scales,
        minimums=minimums,
        shape=weight.shape,
        bits=layout.bits,
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


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Two bytes of each block as one float16 → float32 (…, 1)."""
    return blocks[..., start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: Tensor) -> Tensor:
    return torch.cat([data & 15, data >> 4], dim=-1)


def _q4_0(blocks: Tensor) -> _Blocks:
    return _Blocks(_nibbles(blocks[..., 2:]), _halves(blocks, 0))


def _q4_1(blocks: Tensor) -> _Blocks:
    return _Blocks(_nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: Tensor) -> _Blocks:
    return _Blocks(blocks[..., 2:] ^ 0x80, _halves(blocks, 0))


def _fifth_bits(data: Tensor) -> Tensor:
    """Bit j of four bytes belongs to code j."""
    shifts = torch.arange(8, dtype=torch.uint8, device=data.device)
    return (data[..., None] >> shifts & 1).flatten(-2) << 4


def _q5_0(blocks: Tensor) -> _Blocks:
    return _Blocks(_nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6]), _halves(blocks, 0))


def _q5_1(blocks: Tensor) -> _Blocks:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return _Blocks(codes, _halves(blocks, 0), _halves(blocks, 2))


def _k_scales(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of the eight groups of a block, from six bits each."""
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat([low & 63, high & 15 | low >> 6 << 4], dim=-1)
    minimums = torch.cat([middle & 63, high >> 4 | middle >> 6 << 4], dim=-1)
    return _halves(blocks, 0) * scales, -_halves(blocks, 2) * minimums


def _k_nibbles(data: Tensor) -> Tensor:
    """128 bytes: of each 32, the low nibbles are a group, and the high ones the next."""
    return _nibbles(data.unflatten(-1, (4, 32))).flatten(-2)


def _q4_k(blocks: Tensor) -> _Blocks:
    return _Blocks(_k_nibbles(blocks[..., 16:]), *_k_scales(blocks))


def _q5_k(blocks: Tensor) -> _Blocks:
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
    fifth = (blocks[..., None, 16:48] >> shifts & 1).flatten(-2) << 4
    return _Blocks(_k_nibbles(blocks[..., 48:]) | fifth, *_k_scales(blocks))


def _q6_k(blocks: Tensor) -> _Blocks:
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64)))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> shifts & 3).flatten(-2) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float()
    return _Blocks((low | high).flatten(-2), _halves(blocks, 208) * scales)


def _block_size(kind: str) -> int:
    return 256 if kind.endswith("_K") else 32


_FORMATS = {
    "Q4_0": _Format(_q4_0, bits=4, group_size=32, offset=8),
    "Q4_1": _Format(_q4_1, bits=4, group_size=32),
    "Q5_0": _Format(_q5_0, bits=8, group_size=32, offset=16),
    "Q5_1": _Format(_q5_1, bits=8, group_size=32),
    "Q8_0": _Format(_q8_0, bits=8, group_size=32, offset=128),
    "Q4_K": _Format(_q4_k, bits=4, group_size=32),
    "Q5_K": _Format(_q5_k, bits=8, group_size=32),
    "Q6_K": _Format(_q6_k, bits=8, group_size=16, offset=32),
}
