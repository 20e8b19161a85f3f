"""The reference attention against float64 loops and against torch's own attention."""

from __future__ import annotations

import pytest
import torch
from tests.kernels import exact
from tests.kernels.batches import make_case
from tests.kernels.tolerance import DTYPES, assert_close
from torch.nn import functional

from triolet_kernels.reference import ReferenceOps

SPANS = [(0, 7), (12, 13), (0, 1), (16, 33), (31, 32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 9])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (4, 4), (3, 1)])
def test_equals_float64_loops(
    dtype: torch.dtype, window: int | None, num_heads: int, num_kv_heads: int
) -> None:
    case = make_case(
        SPANS, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=16, block_size=8, dtype=dtype
    )
    arguments = (case.query, case.key_cache, case.value_cache, case.batch)
    actual = ReferenceOps().paged_attention(*arguments, scale=0.3, window=window)
    assert_close(actual, exact.paged_attention(*arguments, scale=0.3, window=window))


def test_equals_torch_attention() -> None:
    length = 21
    case = make_case(
        [(0, length)], num_heads=4, num_kv_heads=2, head_dim=16, block_size=8, dtype=torch.float32
    )
    table = case.batch.block_tables[0, :3].long()
    keys, values = (
        cache[table].transpose(0, 1).flatten(1, 2)[:, :length] for cache in (case.key_cache, case.value_cache)
    )
    expected = functional.scaled_dot_product_attention(
        case.query.transpose(0, 1), keys, values, is_causal=True, enable_gqa=True
    )
    actual = ReferenceOps().paged_attention(
        case.query, case.key_cache, case.value_cache, case.batch, scale=0.25
    )
    assert_close(actual, expected.transpose(0, 1).flatten(1))
