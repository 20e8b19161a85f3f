"""Rotary position embedding, the norms of queries and keys before it, and the writing to the cache after it.

One program for some heads of one token: queries, keys and values alike, so that one launch does it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.gpu.launch import GpuDevice

if TYPE_CHECKING:
    from triolet_kernels.ops import AttentionBatch

__all__ = ["RotaryKernels"]


class RotaryKernels:
    """Rotation and cache writes on one device. The grid depends on the shape of ``qkv`` alone.

    A token with a negative cache slot, such as one that pads a batch, writes nothing to the cache. What an
    8-bit cache cannot hold becomes the largest number that it can.
    """

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

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
        _, num_kv_heads, block_size, head_dim = key_cache.shape
        padded_half = max(16, triton.next_power_of_2(head_dim // 2))
        configuration = self._device.configurations.find("rotary_and_cache", "any size")
        assert configuration is not None
        query = qkv.new_empty(qkv.shape[0], num_heads, head_dim)
        is_float8 = key_cache.element_size() == 1
        grid = (qkv.shape[0], triton.cdiv(num_heads + 2 * num_kv_heads, configuration.constants["HEADS"]))
        self._device.launch(
            _rotary_and_cache, grid, configuration,
            qkv, batch.positions, batch.cache_slots, cos_sin, q_norm, k_norm, query, key_cache, value_cache,
            eps,
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, BLOCK_SIZE=block_size, HEAD_DIM=head_dim,
            PADDED_HALF=padded_half, HAS_Q_NORM=q_norm is not None, HAS_K_NORM=k_norm is not None,
            LARGEST=torch.finfo(key_cache.dtype).max if is_float8 else 0.0,
        )  # fmt: skip
        return query


@triton.jit
def _norm_weights(weight, columns, is_column, is_normed, HAS_NORM: tl.constexpr):
    """(HEADS, PADDED_HALF): the weights of a norm for the heads that have it, 1 for others."""
    if HAS_NORM:
        weights = tl.load(weight + columns, mask=is_column, other=0.0).to(tl.float32)
        return tl.where(is_normed[:, None], weights[None, :], 1.0)
    return tl.full((is_normed.shape[0], columns.shape[0]), 1.0, tl.float32)


@triton.jit
def _store_to_cache(cache, places, values, mask, LARGEST: tl.constexpr):
    if LARGEST > 0:
        values = tl.clamp(values, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(cache + places, values.to(cache.dtype.element_ty), mask=mask)


@triton.jit
def _rotary_and_cache(
    qkv, positions, cache_slots, cos_sin, q_norm, k_norm, query, key_cache, value_cache, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_HALF: tl.constexpr, HAS_Q_NORM: tl.constexpr, HAS_K_NORM: tl.constexpr, LARGEST: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    columns = tl.arange(0, PADDED_HALF)
    is_column = columns < half
    is_query = heads < NUM_HEADS
    is_key = (heads >= NUM_HEADS) & (heads < NUM_HEADS + NUM_KV_HEADS)
    is_value = (heads >= NUM_HEADS + NUM_KV_HEADS) & (heads < NUM_HEADS + 2 * NUM_KV_HEADS)

    num_all: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    places = qkv + (token * num_all + heads[:, None]) * HEAD_DIM + columns[None, :]
    is_there = (heads < num_all)[:, None] & is_column[None, :]
    left = tl.load(places, mask=is_there, other=0.0).to(tl.float32)
    right = tl.load(places + half, mask=is_there, other=0.0).to(tl.float32)

    if HAS_Q_NORM or HAS_K_NORM:
        is_normed = (is_query & HAS_Q_NORM) | (is_key & HAS_K_NORM)
        mean_square = (tl.sum(left * left, axis=1) + tl.sum(right * right, axis=1)) / HEAD_DIM
        factor = tl.where(is_normed, tl.rsqrt(mean_square + eps), 1.0)[:, None]
        left *= factor * _norm_weights(q_norm, columns, is_column, is_query, HAS_Q_NORM)
        left *= _norm_weights(k_norm, columns, is_column, is_key, HAS_K_NORM)
        right *= factor * _norm_weights(q_norm, columns + half, is_column, is_query, HAS_Q_NORM)
        right *= _norm_weights(k_norm, columns + half, is_column, is_key, HAS_K_NORM)

    angles = cos_sin + tl.load(positions + token) * HEAD_DIM + columns
    is_turned = (is_query | is_key)[:, None]
    cos = tl.where(is_turned, tl.load(angles, mask=is_column, other=0.0)[None, :], 1.0)
    sin = tl.where(is_turned, tl.load(angles + half, mask=is_column, other=0.0)[None, :], 0.0)
    turned_left, turned_right = left * cos - right * sin, right * cos + left * sin

    targets = query + (token * NUM_HEADS + heads[:, None]) * HEAD_DIM + columns[None, :]
    mask = is_query[:, None] & is_column[None, :]
    tl.store(targets, turned_left.to(query.dtype.element_ty), mask=mask)
    tl.store(targets + half, turned_right.to(query.dtype.element_ty), mask=mask)

    slot = tl.load(cache_slots + token)
    if slot < 0:
        return
    entry = slot // BLOCK_SIZE * (NUM_KV_HEADS * BLOCK_SIZE) + slot % BLOCK_SIZE
    kv_heads = (heads - NUM_HEADS) % NUM_KV_HEADS
    targets = (entry + kv_heads[:, None] * BLOCK_SIZE) * HEAD_DIM + columns[None, :]
    mask = is_key[:, None] & is_column[None, :]
    _store_to_cache(key_cache, targets, turned_left, mask, LARGEST)
    _store_to_cache(key_cache, targets + half, turned_right, mask, LARGEST)
    mask = is_value[:, None] & is_column[None, :]
    _store_to_cache(value_cache, targets, left, mask, LARGEST)
    _store_to_cache(value_cache, targets + half, right, mask, LARGEST)
