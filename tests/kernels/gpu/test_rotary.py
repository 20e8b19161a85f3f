"""Rotation and cache write on a GPU against the reference, which lays the cache out in the same way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.batches import Shape, identity_angles, make_batch, make_caches
from tests.kernels.gpu.interpreted import interpreted_ops
from tests.kernels.tolerance import assert_close
from torch import Tensor

from triolet_kernels.ops import AttentionBatch, Ops
from triolet_kernels.reference import ReferenceOps

SPANS = [(3, 9), (0, 4), (60, 61)]


def run(
    ops: Ops,
    shape: Shape,
    batch: AttentionBatch,
    *,
    num_norms: int = 0,
    cache_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    num_heads = shape.num_heads + 2 * shape.num_kv_heads
    qkv = torch.randn(11, num_heads * shape.head_dim, generator=generator).to(shape.dtype)
    angles = torch.rand(61, shape.head_dim // 2, generator=generator) * 6
    norms = torch.rand(2, shape.head_dim, generator=generator) + 0.5
    keys, values = make_caches(shape, make_batch(SPANS, 16).block_tables)
    query = ops.rotary_and_cache(
        qkv[: len(batch.positions)], batch, torch.cat([angles.cos(), angles.sin()], dim=1), keys, values,
        num_heads=shape.num_heads, q_norm=norms[0] if num_norms else None,
        k_norm=norms[1] if num_norms > 1 else None, eps=1e-5,
    )  # fmt: skip
    return query, keys, values


def check(shape: Shape, *, num_norms: int = 0) -> None:
    batch = make_batch(SPANS, shape.block_size)
    query, *caches = run(interpreted_ops(), shape, batch, num_norms=num_norms)
    expected, *wanted = run(ReferenceOps(), shape, batch, num_norms=num_norms)
    assert_close(query, expected)
    for actual, cache in zip(caches, wanted, strict=True):
        assert torch.equal(actual.isnan(), cache.isnan())
        assert_close(actual.nan_to_num(), cache.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_norms", [0, 1, 2])
def test_queries_and_cache_equal_the_reference(dtype: torch.dtype, num_norms: int) -> None:
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=64, block_size=16, dtype=dtype)
    check(shape, num_norms=num_norms)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"), [(9, 3, 12), (40, 4, 16), (2, 2, 6), (1, 1, 600)]
)
def test_awkward_shapes(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    shape = Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=16)
    check(shape, num_norms=2)


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_caches_of_8_bits(cache_dtype: torch.dtype) -> None:
    """Of numbers that they hold: the interpreter loses the carry when it rounds to 8 bits."""
    shape = Shape(num_heads=1, num_kv_heads=1, head_dim=16, block_size=16)
    batch = make_batch([(0, 1)], 16)
    caches = [cache.to(cache_dtype) for cache in make_caches(shape, batch.block_tables)]
    qkv = torch.randn(1, 48).to(cache_dtype)
    interpreted_ops().rotary_and_cache(qkv.bfloat16(), batch, identity_angles(1, 16), *caches, num_heads=1)
    for cache, wanted in zip(caches, (qkv[0, 16:32], qkv[0, 32:]), strict=True):
        written = cache.view(-1, 16)[int(batch.cache_slots[0])]
        assert torch.equal(written.float(), wanted.float())


def test_what_8_bits_cannot_hold_becomes_the_largest_number_that_they_do() -> None:
    shape = Shape(num_heads=1, num_kv_heads=1, head_dim=16, block_size=16)
    batch = make_batch([(0, 1)], 16)
    caches = [cache.to(torch.float8_e4m3fn) for cache in make_caches(shape, batch.block_tables)]
    qkv = torch.zeros(1, 48)
    qkv[0, 16], qkv[0, 32] = 1e4, -1e4
    interpreted_ops().rotary_and_cache(qkv, batch, identity_angles(1, 16), *caches, num_heads=1)
    keys, values = (cache.flatten(2)[cache.flatten(2).float().isfinite()].float() for cache in caches)
    assert keys.max() == 448
    assert values.min() == -448


def test_padding_writes_nothing() -> None:
    shape = Shape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=16)
    batch = make_batch(SPANS, 16)
    slots = torch.full_like(batch.cache_slots, -1)
    _, keys, values = run(interpreted_ops(), shape, replace(batch, cache_slots=slots))
    assert keys.isnan().all()
    assert values.isnan().all()


def test_bits_do_not_depend_on_company() -> None:
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16)
    batch = make_batch(SPANS, 16)
    query, *_ = run(interpreted_ops(), shape, batch, num_norms=2)
    one = replace(batch, positions=batch.positions[:1], cache_slots=batch.cache_slots[:1])
    alone, *_ = run(interpreted_ops(), shape, one, num_norms=2)
    assert torch.equal(alone, query[:1])
