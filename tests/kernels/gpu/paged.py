"""Attention alone over a cache that the reference has filled: the interpreter would take minutes to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests.kernels.batches import (
    Problem,
    Shape,
    Spans,
    identity_angles,
    make_batch,
    make_caches,
    make_problem,
    make_tables,
)
from torch import Tensor

from triolet_kernels.ops import AttentionBatch
from triolet_kernels.reference import ReferenceOps


@dataclass(frozen=True, kw_only=True)
class Paged:
    """What attention takes. What no token may see is NaN: unused slots and blocks that a window has left."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    batch: AttentionBatch

    def attend(self, function: Callable[..., Tensor], **options: float | None) -> Tensor:
        options = {"scale": 0.3, "window": None, **options}
        return function(self.query, self.key_cache, self.value_cache, self.batch, **options)


def paged(
    shape: Shape, spans: Spans, *, window: int | None = None, cache_dtype: torch.dtype | None = None
) -> Paged:
    problem = make_problem(shape, [end for _, end in spans])
    return make_paged(problem, spans, window=window, cache_dtype=cache_dtype)


def make_paged(
    problem: Problem,
    spans: Spans,
    *,
    window: int | None = None,
    cache_dtype: torch.dtype | None = None,
) -> Paged:
    """The tokens ``spans`` of a problem, with all that comes before them in the cache."""
    shape = problem.shape
    tables = make_tables([end for _, end in spans], shape.block_size)
    caches = make_caches(shape, tables)
    whole = make_batch([(0, end) for _, end in spans], shape.block_size, tables=tables)
    ends = [end for _, end in spans]
    parts = [
        torch.cat([tensor[:end] for tensor, end in zip(tensors, ends, strict=True)])
        for tensors in (problem.queries, problem.keys, problem.values)
    ]
    angles = identity_angles(max(ends), shape.head_dim)
    qkv = torch.cat(parts, dim=1).flatten(1)
    ReferenceOps().rotary_and_cache(qkv, whole, angles, *caches, num_heads=shape.num_heads)
    for index, (start, _) in enumerate(spans):
        num_left = 0 if window is None else max(0, start - window + 1) // shape.block_size
        for cache in caches:
            cache[tables[index, :num_left].long()] = math.nan
    queries = [tensor[start:end] for tensor, (start, end) in zip(problem.queries, spans, strict=True)]
    keys, values = (cache.to(cache_dtype or shape.dtype) for cache in caches)
    batch = make_batch(spans, shape.block_size, tables=tables)
    return Paged(query=torch.cat(queries), key_cache=keys, value_cache=values, batch=batch)
