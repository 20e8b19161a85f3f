"""Ragged batches over a paged cache, made for tests of the kernels.

A cache starts out full of NaN, so that any read of what was never written shows. It is filled and read
through the operations alone: what lies where inside a block is theirs to choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, Ops
from triolet_kernels.reference.cache_codes import SCALE_SIZE

_NOT_FINITE = 124
"""In every byte of a cache of codes: read as a code and as its scale, more than any number."""

Spans = Sequence[tuple[int, int]]
"""For each sequence the positions ``start:end`` that a step computes."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Heads and blocks of one attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype = torch.float32
    has_codes: bool = False
    """Whether the cache keeps 8 bits of a value."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Queries, keys and values ``(positions, heads, D)`` of some sequences, one tensor for each."""

    shape: Shape
    queries: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]

    def pick(self, indices: Sequence[int]) -> Problem:
        """Some of the sequences, in another order."""
        return replace(
            self,
            queries=[self.queries[i] for i in indices],
            keys=[self.keys[i] for i in indices],
            values=[self.values[i] for i in indices],
        )


def make_problem(shape: Shape, lengths: Sequence[int], seed: int = 0) -> Problem:
    generator = torch.Generator().manual_seed(seed)

    def draw(num_heads: int) -> list[Tensor]:
        sizes = [(length, num_heads, shape.head_dim) for length in lengths]
        return [torch.randn(size, generator=generator).to(shape.dtype) for size in sizes]

    queries, keys, values = draw(shape.num_heads), draw(shape.num_kv_heads), draw(shape.num_kv_heads)
    return Problem(shape=shape, queries=queries, keys=keys, values=values)


def make_batch(spans: Spans, block_size: int, *, tables: Tensor | None = None) -> AttentionBatch:
    """The batch of one step. Unless ``tables`` are given, each sequence gets shuffled blocks of its own.

    Unused entries of the block tables point far outside any cache.
    """
    if tables is None:
        tables = make_tables([end for _, end in spans], block_size)
    positions = [torch.arange(start, end) for start, end in spans]
    slots = [
        tables[index, places // block_size].long() * block_size + places % block_size
        for index, places in enumerate(positions)
    ]
    lengths = [end - start for start, end in spans]
    return AttentionBatch(
        positions=torch.cat(positions),
        cache_slots=torch.cat(slots),
        block_tables=tables,
        query_starts=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        sequence_lengths=torch.tensor([end for _, end in spans], dtype=torch.int32),
        max_query_length=max(lengths),
        max_sequence_length=max(end for _, end in spans),
    )


def make_tables(lengths: Sequence[int], block_size: int, seed: int = 0) -> Tensor:
    num_blocks = [-(-length // block_size) for length in lengths]
    ids = torch.randperm(sum(num_blocks) + 3, generator=torch.Generator().manual_seed(seed))
    tables = torch.full((len(lengths), max(num_blocks) + 1), 2**31 - 1, dtype=torch.int32)
    taken = 0
    for index, count in enumerate(num_blocks):
        tables[index, :count] = ids[taken : taken + count].to(torch.int32)
        taken += count
    return tables


def make_caches(shape: Shape, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value cache, NaN everywhere, or codes that are not finite, wherever a scale may be."""
    num_blocks = int(tables[tables != 2**31 - 1].max()) + 1
    size = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    if shape.has_codes:
        coded = (*size[:-1], shape.head_dim + SCALE_SIZE)
        return torch.full(coded, _NOT_FINITE, dtype=torch.int8), torch.full(
            coded, _NOT_FINITE, dtype=torch.int8
        )
    return torch.full(size, math.nan, dtype=shape.dtype), torch.full(size, math.nan, dtype=shape.dtype)


def identity_angles(num_positions: int, head_dim: int) -> Tensor:
    """A table of cosines and sines that rotates nothing."""
    half = torch.ones(num_positions, head_dim // 2)
    return torch.cat([half, 0 * half], dim=1)


def run_step(
    ops: Ops,
    problem: Problem,
    spans: Spans,
    caches: tuple[Tensor, Tensor],
    tables: Tensor,
    *,
    scale: float = 0.3,
    window: int | None = None,
) -> Tensor:
    """One step as a model does it: keys and values into the cache, then attention → (T, H * D)."""
    batch = make_batch(spans, problem.shape.block_size, tables=tables)
    parts = [
        torch.cat([tensor[start:end] for tensor, (start, end) in zip(tensors, spans, strict=True)])
        for tensors in (problem.queries, problem.keys, problem.values)
    ]
    qkv = torch.cat(parts, dim=1).flatten(1)
    angles = identity_angles(batch.max_sequence_length, problem.shape.head_dim)
    query = ops.rotary_and_cache(qkv, batch, angles, *caches, num_heads=problem.shape.num_heads)
    return ops.paged_attention(query, *caches, batch, scale=scale, window=window)


def run_history(
    ops: Ops, problem: Problem, spans: Spans, *, scale: float = 0.3, window: int | None = None
) -> Tensor:
    """Attention of ``spans`` alone, with everything before them in the cache already.

    Blocks that the window has left are NaN: they may be somebody else's by then.
    """
    shape, lengths = problem.shape, [end for _, end in spans]
    tables = make_tables(lengths, shape.block_size)
    caches = make_caches(shape, tables)
    past = [(index, start) for index, (start, _) in enumerate(spans) if start]
    if past:
        indices = [index for index, _ in past]
        run_step(ops, problem.pick(indices), [(0, start) for _, start in past], caches, tables[indices])
    if window is not None:
        for index, (start, _) in enumerate(spans):
            num_left = max(0, start - window + 1) // shape.block_size
            for cache in caches:
                cache[tables[index, :num_left].long()] = _NOT_FINITE if shape.has_codes else math.nan
    return run_step(ops, problem, spans, caches, tables, scale=scale, window=window)
