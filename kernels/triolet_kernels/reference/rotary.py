"""Rotary position embedding (Su 2021, half-split form) and the writing of keys and values to the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet_kernels.reference.cache_codes import encode
from triolet_kernels.reference.norm import normalize

if TYPE_CHECKING:
    from triolet_kernels.ops import AttentionBatch

__all__ = ["rotary_and_cache"]


def rotary_and_cache(
    qkv: Tensor,
    batch: AttentionBatch,
    cos_sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    num_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    _, num_kv_heads, block_size, _ = key_cache.shape
    heads = qkv.view(len(qkv), num_heads + 2 * num_kv_heads, -1)
    query, key, value = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
    angles = cos_sin[batch.positions].unsqueeze(1)
    blocks, offsets = batch.cache_slots // block_size, batch.cache_slots % block_size
    key_cache[blocks, :, offsets] = _entries(_rotate(key, k_norm, eps, angles), key_cache.dtype)
    value_cache[blocks, :, offsets] = _entries(value, value_cache.dtype)
    return _rotate(query, q_norm, eps, angles).to(qkv.dtype)


def _entries(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x`` (T, G, D) as a cache of ``dtype`` keeps it."""
    return encode(x) if dtype == torch.int8 else x.to(dtype)


def _rotate(heads: Tensor, norm: Tensor | None, eps: float, angles: Tensor) -> Tensor:
    """``heads`` (T, heads, D), ``angles`` (T, 1, D) → (T, heads, D) float32."""
    x = heads.float()
    if norm is not None:
        x = normalize(x, norm, eps)
    cos, sin = angles.chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
