"""Quantised weights put into one of two plain formats, Q4_1 and Q8_0: blocks of 32 with scales of their own.

Kernels that know these two can serve all formats. This module must not know what the weights belong to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from triolet_kernels.quant import QuantTensor
from triolet_kernels.quant_blocks import FORMATS, take_apart

__all__ = ["to_q4_1", "to_q8_0"]

_BLOCK = 32
_LARGEST_CODE = 127
_ROWS_AT_A_TIME = 1024


def to_q4_1(weight: QuantTensor) -> QuantTensor:
    """A weight in Q4_K with the same codes. Scales and minimums, products of two numbers there, are rounded
    to float16: by at most ``2**-11`` of themselves, or by ``2**-25`` where that is more.
    """
    return _convert(weight, "Q4_1", _q4_1)


def to_q8_0(weight: QuantTensor) -> QuantTensor:
    """A weight in any format, in codes of 8 bits.

    Those of Q4_0, Q5_0 and Q8_0 mean the same as before. Elsewhere values are rounded anew, by at most a
    254th of the largest in their block of 32, and ``127 * 2**-25`` where that one is below ``127 * 2**-14``:
    scales are float16. bfloat16 rounds the largest one by up to a 512th.
    """
    if weight.kind == "Q8_0":
        return weight
    layout = FORMATS.get(weight.kind)
    is_exact = layout is not None and layout.offset > 0 and layout.group_size == _BLOCK
    return _convert(weight, "Q8_0", _q8_0_of_codes if is_exact else _q8_0_of_values)


def _convert(weight: QuantTensor, kind: str, convert: Callable[[QuantTensor], Tensor]) -> QuantTensor:
    """A part of the rows after the other, so that no more than those are ever spread out."""
    num_rows = weight.shape[0]
    parts = [
        convert(weight.rows(slice(start, start + _ROWS_AT_A_TIME))).flatten(1)
        for start in range(0, num_rows, _ROWS_AT_A_TIME)
    ]
    return QuantTensor(torch.cat(parts), kind, weight.shape)


def _q4_1(weight: QuantTensor) -> Tensor:
    blocks = take_apart(weight)
    assert blocks.minimums is not None, "a format with minimums"
    codes = blocks.codes.view(weight.shape[0], -1, _BLOCK)
    header = torch.stack([blocks.scales, blocks.minimums], dim=-1)
    return _block(header, codes[..., : _BLOCK // 2] | codes[..., _BLOCK // 2 :] << 4)


def _q8_0_of_codes(weight: QuantTensor) -> Tensor:
    blocks = take_apart(weight)
    codes = blocks.codes.view(torch.int8) - FORMATS[weight.kind].offset
    return _block(blocks.scales[..., None], codes.view(weight.shape[0], -1, _BLOCK))


def _q8_0_of_values(weight: QuantTensor) -> Tensor:
    values = weight.dequantize().view(weight.shape[0], -1, _BLOCK)
    steps = (values.abs().amax(-1, keepdim=True) / _LARGEST_CODE).half()
    codes = (values / steps).round().clamp(-_LARGEST_CODE, _LARGEST_CODE).nan_to_num()
    return _block(steps, codes.to(torch.int8))


def _block(header: Tensor, codes: Tensor) -> Tensor:
    """``header (…, n)`` in float16, then the bytes of ``codes`` → ``(…, bytes)`` uint8."""
    return torch.cat([header.half().view(torch.uint8), codes.view(torch.uint8)], dim=-1)
