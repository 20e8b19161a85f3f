"""The reference attention against float64 loops and against torch's own attention."""

from __future__ import annotations

import pytest
import torch
from tests.kernels import exact
from tests.kernels.batches import Shape, make_problem, run_history
from tests.kernels.tolerance import DTYPES, assert_close
from torch.nn import functional

from triolet_kernels.reference import ReferenceOps

SPANS = [(0, 7), (12, 13), (0, 1), (16, 33), (31, 32)]
LENGTHS = [end for _, end in SPANS]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 9])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (4, 4), (3, 1)])
def test_equals_float64_loops(
    dtype: torch.dtype, window: int | None, num_heads: int, num_kv_heads: int
) -> None:
    shape = Shape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=16, block_size=8, dtype=dtype)
    problem = make_problem(shape, LENGTHS)
    actual = run_history(ReferenceOps(), problem, SPANS, window=window)
    assert_close(actual, exact.attention(problem, SPANS, window=window))


def test_equals_torch_attention() -> None:
    shape = Shape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=8)
    problem = make_problem(shape, [21])
    query, key, value = (
        tensors[0].transpose(0, 1) for tensors in (problem.queries, problem.keys, problem.values)
    )
    expected = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    actual = run_history(ReferenceOps(), problem, [(0, 21)], scale=0.25)
    assert_close(actual, expected.transpose(0, 1).flatten(1))
