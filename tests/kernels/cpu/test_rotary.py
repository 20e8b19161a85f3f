"""Rotation and cache write on the CPU against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.batches import Shape, make_batch, make_caches
from tests.kernels.tolerance import DTYPES, assert_close
from torch import Tensor

from triolet_kernels.cpu import CpuOps
from triolet_kernels.ops import AttentionBatch, Ops
from triolet_kernels.reference import ReferenceOps

SPANS = [(3, 9), (0, 4), (60, 61), (0, 40)]


def run(
    ops: Ops,
    shape: Shape,
    batch: AttentionBatch,
    qkv: Tensor,
    angles: Tensor,
    norms: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    caches = make_caches(shape, batch.block_tables)
    q_norm, k_norm = norms or (None, None)
    query = ops.rotary_and_cache(
        qkv, batch, angles, *caches, num_heads=shape.num_heads, q_norm=q_norm, k_norm=k_norm, eps=1e-5
    )
    return query, *caches


def make_inputs(
    batch: AttentionBatch, head_dim: int, dtype: torch.dtype, has_norms: bool
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Queries, keys and values of 10 heads, angles, and the norms of queries and keys."""
    generator = torch.Generator().manual_seed(3)
    qkv = torch.randn(len(batch.positions), 10 * head_dim, generator=generator).to(dtype)
    angles = torch.rand(61, head_dim // 2, generator=generator) * 6
    table = torch.cat([angles.cos(), angles.sin()], dim=1)
    q_norm, k_norm = torch.rand(2, head_dim, generator=generator) + 0.5
    return qkv, table, (q_norm, k_norm) if has_norms else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("head_dim", [64, 16, 12, 6, 256, 600])
def test_queries_and_cache_equal_the_reference(
    ops: CpuOps, dtype: torch.dtype, has_norms: bool, head_dim: int
) -> None:
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=head_dim, block_size=16, dtype=dtype)
    batch = make_batch(SPANS, shape.block_size)
    qkv, table, norms = make_inputs(batch, head_dim, dtype, has_norms)

    query, keys, values = run(ops, shape, batch, qkv, table, norms)
    expected = run(ReferenceOps(), shape, batch, qkv, table, norms)

    assert_close(query, expected[0])
    # Inside a block the order is the kernel's own: the same values must be there, and nothing else written.
    for actual, wanted in ((keys, expected[1]), (values, expected[2])):
        actual_heads, wanted_heads = actual.flatten(2).sort().values, wanted.flatten(2).sort().values
        assert torch.equal(actual_heads.isnan(), wanted_heads.isnan())
        assert_close(actual_heads.nan_to_num(), wanted_heads.nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 6, 600])
def test_values_are_kept_as_the_codes_and_scales_of_the_reference(
    ops: CpuOps, dtype: torch.dtype, head_dim: int
) -> None:
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=head_dim, block_size=16, dtype=dtype, has_codes=True)
    batch = make_batch(SPANS, shape.block_size)
    qkv, table, _ = make_inputs(batch, head_dim, dtype, has_norms=False)
    _, keys, values = run(ops, shape, batch, qkv, table, None)
    _, expected_keys, expected_values = run(ReferenceOps(), shape, batch, qkv, table, None)
    # Inside a block the order is the kernel's own.
    assert torch.equal(values.flatten(2).sort().values, expected_values.flatten(2).sort().values)
    distance = keys.flatten(2).sort().values.int() - expected_keys.flatten(2).sort().values.int()
    assert distance.abs().max() <= 1  # a key is rounded once more, on its way


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 18, 6])
def test_bits_do_not_depend_on_company(ops: CpuOps, dtype: torch.dtype, head_dim: int) -> None:
    shape = Shape(num_heads=6, num_kv_heads=2, head_dim=head_dim, block_size=16, dtype=dtype)
    batch = make_batch(SPANS, shape.block_size)
    qkv, table, norms = make_inputs(batch, head_dim, dtype, has_norms=True)
    query, *caches = run(ops, shape, batch, qkv, table, norms)
    for index in (0, 7, len(qkv) - 1):
        one = replace(
            batch,
            positions=batch.positions[index : index + 1],
            cache_slots=batch.cache_slots[index : index + 1],
        )
        alone, *caches_alone = run(ops, shape, one, qkv[index : index + 1].clone(), table, norms)
        assert torch.equal(alone, query[index : index + 1])
        for actual, wanted in zip(caches_alone, caches, strict=True):
            written = ~actual.isnan()
            assert torch.equal(actual[written], wanted[written])
