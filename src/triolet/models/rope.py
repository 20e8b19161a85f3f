"""Tables of cosines and sines for rotary position embedding.

All arithmetic is in float32 and in the order of the reference implementations, because models were trained
with these roundings. This module knows nothing of layers, caches or files.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from triolet.models.config import RopeConfig

__all__ = ["cos_sin_table", "inverse_frequencies"]


def cos_sin_table(rope: RopeConfig, num_positions: int, device: torch.device) -> Tensor:
    """``(num_positions, dim)`` float32: dim / 2 cosines, then dim / 2 sines, per position.

    Source: Su et al. 2021, "RoFormer", equation 34.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = torch.outer(positions, inverse_frequencies(rope))
    return torch.cat([angles.cos(), angles.sin()], dim=1).to(device)


def inverse_frequencies(rope: RopeConfig) -> Tensor:
    """``(dim / 2,)`` float32: radians per position, scaling included."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.frequency_factors is not None:
        frequencies = frequencies / torch.tensor(rope.frequency_factors, dtype=torch.float32)
    if rope.scaling_kind == "linear":
        return frequencies / rope.factor
    if rope.scaling_kind == "llama3":
        return _scale_llama3(frequencies, rope)
    return frequencies


def _scale_llama3(frequencies: Tensor, rope: RopeConfig) -> Tensor:
    """Slow dimensions are stretched by ``factor``, fast ones kept, those between are interpolated.

    Source: Llama 3.1, ``apply_scaling`` of Meta's reference code.
    """
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_max_position_embeddings / wavelengths
    stretched = frequencies / rope.factor
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * stretched + share * frequencies
    return torch.where(share < 0, stretched, torch.where(share > 1, frequencies, blended))
