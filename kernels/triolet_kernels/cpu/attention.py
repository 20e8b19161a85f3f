"""Rotation with cache write, and paged attention, through the compiled kernels.

The two belong together: the kernels order the values inside a block in their own way (``cache_layout.h``), so
either both are native for a shape, or both are the reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from triolet_kernels.cpu.loader import INSTRUCTION_SETS, Kernel, NativeLibrary
from triolet_kernels.reference import attention as reference_attention
from triolet_kernels.reference import rotary as reference_rotary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from triolet_kernels.ops import AttentionBatch

__all__ = ["AttentionKernels"]

_MAX_HEAD_DIM = 1024
_MAX_VECTORS_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Those for caches of one kind, by the number format of queries."""

    rotary: Mapping[torch.dtype, Kernel]
    attention: Mapping[int, Mapping[torch.dtype, Kernel]]
    """By what divides blocks and heads: those shorter than the widest vectors take narrower ones, or none."""
    plain: Mapping[torch.dtype, Kernel]

    @classmethod
    def of(cls, native: NativeLibrary, rotary: str, suffix: str = "") -> _Kernels:
        attention = {
            lanes: native.kernels(f"paged_attention{suffix}", multiple_of=lanes)
            for lanes in INSTRUCTION_SETS.values()
        }
        return cls(native.kernels(rotary), attention, native.kernels(f"plain_attention{suffix}"))

    def attention_kernel(self, dtype: torch.dtype, block_size: int, head_dim: int) -> Kernel | None:
        """None if the reference must do."""
        if head_dim > _MAX_HEAD_DIM or head_dim % 2:
            return None
        lanes = math.gcd(block_size, head_dim, max(INSTRUCTION_SETS.values()))
        kernels = self.attention.get(lanes, {}) if head_dim <= _MAX_VECTORS_HEAD_DIM else {}
        return kernels.get(dtype) or self.plain.get(dtype)


class AttentionKernels:
    """The kernels of one library that touch the KV cache, by number format and shape."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._of_values = _Kernels.of(native, "rotary_and_cache")
        self._of_codes = _Kernels.of(native, "rotary_and_codes", "_of_codes")

    def _kernels(self, cache: Tensor) -> _Kernels:
        return self._of_codes if cache.dtype == torch.int8 else self._of_values

    def rotary_and_cache(
        self,
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
        head_dim = qkv.shape[1] // (num_heads + 2 * num_kv_heads)
        kernels = self._kernels(key_cache)
        if kernels.attention_kernel(qkv.dtype, block_size, head_dim) is None:
            return reference_rotary.rotary_and_cache(
                qkv,
                batch,
                cos_sin,
                key_cache,
                value_cache,
                num_heads=num_heads,
                q_norm=q_norm,
                k_norm=k_norm,
                eps=eps,
            )
        q_factors, k_factors = _float32(q_norm), _float32(k_norm)
        query = qkv.new_empty(qkv.shape[0], num_heads, head_dim)
        kernels.rotary[qkv.dtype](
            qkv.data_ptr(),
            batch.positions.data_ptr(),
            batch.cache_slots.data_ptr(),
            cos_sin.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            query.data_ptr(),
            qkv.shape[0],
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            None if q_factors is None else q_factors.data_ptr(),
            None if k_factors is None else k_factors.data_ptr(),
            eps,
            *self._team,
        )
        return query

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        num_tokens, num_heads, head_dim = query.shape
        kernel = self._kernels(key_cache).attention_kernel(query.dtype, key_cache.shape[2], head_dim)
        if kernel is None:
            return reference_attention.paged_attention(
                query, key_cache, value_cache, batch, scale=scale, window=window
            )
        output = query.new_empty(num_tokens, num_heads * head_dim)
        kernel(
            query.data_ptr(),
            key_cache.data_ptr(),
            value_cache.data_ptr(),
            output.data_ptr(),
            batch.positions.data_ptr(),
            batch.block_tables.data_ptr(),
            batch.query_starts.data_ptr(),
            num_tokens,
            batch.block_tables.shape[0],
            batch.block_tables.stride(0),
            batch.max_sequence_length,
            num_heads,
            key_cache.shape[1],
            head_dim,
            key_cache.shape[2],
            scale,
            window or 0,
            *self._team,
        )
        return output


def _float32(weight: Tensor | None) -> Tensor | None:
    return None if weight is None else weight.float()
