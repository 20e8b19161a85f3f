"""Ragged batches over a paged cache, made for tests of the kernels.

A cache starts out full of NaN, so that any read of what was never written shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attention problem: the batch, the queries, and the caches with all their keys in place."""

    batch: AttentionBatch
    query: Tensor
    key_cache: Tensor
    value_cache: Tensor


def make_batch(
    spans: Sequence[tuple[int, int]],
    block_size: int,
    *,
    generator: torch.Generator,
    num_spare_blocks: int = 3,
) -> tuple[AttentionBatch, int]:
    """A batch whose sequence s computes positions ``start:end`` of ``spans[s]``, and its number of blocks.

    Block ids are shuffled; unused entries of the block tables point outside the cache.
    """
    num_blocks = [-(-end // block_size) for _, end in spans]
    total = sum(num_blocks) + num_spare_blocks
    ids = torch.randperm(total, generator=generator).to(torch.int32)
    tables = torch.full((len(spans), max(num_blocks) + 1), 2**31 - 1, dtype=torch.int32)
    taken = 0
    for index, count in enumerate(num_blocks):
        tables[index, :count] = ids[taken : taken + count]
        taken += count
    positions = [torch.arange(start, end) for start, end in spans]
    slots = [
        tables[index, places // block_size].long() * block_size + places % block_size
        for index, places in enumerate(positions)
    ]
    lengths = [end - start for start, end in spans]
    batch = AttentionBatch(
        positions=torch.cat(positions),
        cache_slots=torch.cat(slots),
        block_tables=tables,
        query_starts=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        sequence_lengths=torch.tensor([end for _, end in spans], dtype=torch.int32),
        max_query_length=max(lengths),
        max_sequence_length=max(end for _, end in spans),
    )
    return batch, total


def make_case(
    spans: Sequence[tuple[int, int]],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Case:
    """A case with random queries and keys at every position below each span's end, NaN everywhere else."""
    generator = torch.Generator().manual_seed(seed)
    batch, num_blocks = make_batch(spans, block_size, generator=generator)
    shape = (num_blocks, num_kv_heads, block_size, head_dim)
    key_cache = torch.full(shape, math.nan, dtype=dtype)
    value_cache = torch.full(shape, math.nan, dtype=dtype)
    for index, (_, end) in enumerate(spans):
        places = torch.arange(end)
        blocks, offsets = batch.block_tables[index, places // block_size].long(), places % block_size
        for cache in (key_cache, value_cache):
            values = torch.randn(end, num_kv_heads, head_dim, generator=generator)
            cache[blocks, :, offsets] = values.to(dtype)
    query = torch.randn(len(batch.positions), num_heads, head_dim, generator=generator).to(dtype)
    return Case(batch=batch, query=query, key_cache=key_cache, value_cache=value_cache)
