"""Keys and values of 8 bits: D codes, multiples of a power of two, which follows them as a bfloat16.

Being a power of two, a scale rounds nothing: a code times its scale is exact, in bfloat16 as well. A row that
is not finite comes back as NaN. This module must not know what rows are for.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["SCALE_SIZE", "decode", "encode", "entry_size"]

SCALE_SIZE = 2
"""Bytes that follow the codes of a row."""

_LARGEST = 127
_NOT_FINITE = 2.0**122
_SMALLEST_EXPONENT, _EXPONENT_OF_NAN = 21, 255


def entry_size(head_dim: int, dtype: torch.dtype) -> int:
    """Elements that a head's key or value takes in a cache of ``dtype``, which is of codes if it is int8."""
    return head_dim + SCALE_SIZE if dtype == torch.int8 else head_dim


def encode(x: Tensor) -> Tensor:
    """``x`` (…, D) → (…, D + 2) int8: to the nearest multiple, ties to even."""
    bits = x.float().abs().amax(-1, keepdim=True).view(torch.int32).long()
    # One more where the largest would be rounded to 128.
    exponents = ((bits + 0x10000) >> 23).clamp(_SMALLEST_EXPONENT, _EXPONENT_OF_NAN)
    scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents - 127 - 6)
    codes = torch.where(scales == _NOT_FINITE, _LARGEST, (x.float() / scales).round())
    return torch.cat([codes.to(torch.int8), scales.bfloat16().view(torch.int8)], dim=-1)


def decode(rows: Tensor) -> Tensor:
    """Rows (…, D + 2) int8 → (…, D) float32."""
    scales = rows[..., -SCALE_SIZE:].clone(memory_format=torch.contiguous_format)
    factors = scales.view(torch.bfloat16).float()
    factors[factors == _NOT_FINITE] = torch.nan
    return rows[..., :-SCALE_SIZE].float() * factors
