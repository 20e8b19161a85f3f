"""Paged attention on the CPU: against the reference, and bit-equality whatever the company."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.kernels.batches import (
    Shape,
    Spans,
    make_batch,
    make_caches,
    make_problem,
    make_tables,
    run_history,
    run_step,
)
from tests.kernels.cpu.variants import build_if_missing, isa_of, make_ops
from tests.kernels.memory_limit import no_large_memory
from tests.kernels.tolerance import DTYPES, assert_close
from torch import Tensor

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.reference import ReferenceOps

WINDOWS_AND_CODES = [(None, False), (50, False), (None, True)]
SPANS = [(0, 7), (12, 13), (0, 1), (130, 205), (31, 32), (299, 300), (0, 65), (127, 129)]
LENGTHS = [end for _, end in SPANS]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 33, 128])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size"),
    [
        (9, 3, 64, 32),
        (4, 4, 16, 16),
        (7, 1, 128, 8),
        (8, 2, 24, 64),
        (4, 1, 256, 32),
        (40, 1, 80, 16),
        (2, 1, 12, 128),
        (2, 2, 6, 8),
        (4, 2, 270, 16),
    ],
)
def test_equals_the_reference(
    ops: CpuOps,
    dtype: torch.dtype,
    window: int | None,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
) -> None:
    shape = Shape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    problem = make_problem(shape, LENGTHS)
    actual = run_history(ops, problem, SPANS, window=window)
    assert_close(actual, run_history(ReferenceOps(), problem, SPANS, window=window))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 33])
def test_caches_of_codes(ops: CpuOps, any_shape: Shape, dtype: torch.dtype, window: int | None) -> None:
    problem = make_problem(replace(any_shape, dtype=dtype, has_codes=True), LENGTHS)
    actual = run_history(ops, problem, SPANS, window=window)
    assert_close(actual, run_history(ReferenceOps(), problem, SPANS, window=window))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_and_one_dominant_key(ops: CpuOps, dtype: torch.dtype) -> None:
    shape = Shape(num_heads=2, num_kv_heads=1, head_dim=32, block_size=16, dtype=dtype)
    problem = make_problem(shape, [150])
    problem.keys[0][77] *= 100
    actual = run_history(ops, problem, [(0, 150)], scale=20.0)
    assert_close(actual, run_history(ReferenceOps(), problem, [(0, 150)], scale=20.0))


SHAPES = [
    Shape(num_heads=6, num_kv_heads=2, head_dim=32, block_size=16),
    Shape(num_heads=9, num_kv_heads=3, head_dim=64, block_size=32),
    Shape(num_heads=2, num_kv_heads=1, head_dim=256, block_size=64),
    Shape(num_heads=3, num_kv_heads=1, head_dim=18, block_size=32),
    Shape(num_heads=4, num_kv_heads=2, head_dim=22, block_size=8),
    Shape(num_heads=2, num_kv_heads=1, head_dim=12, block_size=128),
]
"""Ordinary ones, and those of tiny models, which vectors do not divide."""


@pytest.fixture(params=SHAPES, ids=lambda shape: f"{shape.num_heads}x{shape.head_dim}b{shape.block_size}")
def any_shape(request: pytest.FixtureRequest) -> Shape:
    shape: Shape = request.param
    return shape


def run_in_chunks(ops: CpuOps, shape: Shape, length: int, chunk: int, window: int | None) -> Tensor:
    problem, tables = make_problem(shape, [length]), make_tables([length], shape.block_size)
    caches = make_caches(shape, tables)
    spans = [(start, min(start + chunk, length)) for start in range(0, length, chunk)]
    return torch.cat(
        [run_step(ops, problem, [span], caches, tables, window=window) for span in spans],
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "has_codes"), WINDOWS_AND_CODES)
def test_bits_do_not_depend_on_chunks(
    ops: CpuOps, any_shape: Shape, dtype: torch.dtype, window: int | None, has_codes: bool
) -> None:
    shape = replace(any_shape, dtype=dtype, has_codes=has_codes)
    whole = run_in_chunks(ops, shape, 200, 200, window)
    for chunk in (1, 2, 7, 64, 131):
        assert torch.equal(run_in_chunks(ops, shape, 200, chunk, window), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "has_codes"), WINDOWS_AND_CODES)
def test_bits_do_not_depend_on_company_or_blocks(
    ops: CpuOps, any_shape: Shape, dtype: torch.dtype, window: int | None, has_codes: bool
) -> None:
    shape = replace(any_shape, dtype=dtype, has_codes=has_codes)
    problem = make_problem(shape, LENGTHS)
    together = run_history(ops, problem, SPANS, window=window)
    start = 0
    for index, span in enumerate(SPANS):
        alone = run_history(ops, problem.pick([index]), [span], window=window)
        assert torch.equal(together[start : start + len(alone)], alone)
        start += len(alone)


@pytest.mark.parametrize(
    "spans",
    [SPANS, [(700, 701)], [(512, 514), (0, 3)], [*[(30 + i, 31 + i) for i in range(8)], (1500, 1530)]],
)
def test_bits_do_not_depend_on_the_number_of_threads(ops: CpuOps, spans: Spans) -> None:
    shape = Shape(num_heads=9, num_kv_heads=3, head_dim=64, block_size=32, dtype=torch.bfloat16)
    problem = make_problem(shape, [end for _, end in spans])
    alone = run_history(ops, problem, spans)
    for num_threads in (2, 5):
        assert torch.equal(run_history(make_ops(isa_of(ops), num_threads), problem, spans), alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 18])
@pytest.mark.parametrize("part", ["queries", "keys", "values"])
@pytest.mark.parametrize("has_codes", [False, True])
def test_a_nan_shows_in_all_that_sees_it_and_in_no_other_sequence(
    ops: CpuOps, dtype: torch.dtype, head_dim: int, part: str, has_codes: bool
) -> None:
    shape = Shape(
        num_heads=4, num_kv_heads=2, head_dim=head_dim, block_size=32, dtype=dtype, has_codes=has_codes
    )
    problem = make_problem(shape, [200, 150])
    spans = [(0, 200), (0, 150)]
    expected = run_history(ops, problem, spans).view(350, 4, head_dim)
    getattr(problem, part)[0][100, 0, 3] = math.nan
    actual = run_history(ops, problem, spans).view(350, 4, head_dim)
    # What sees a key: both heads of its group, from the token on.
    seen = actual[100:101, :1] if part == "queries" else actual[100:200, :2]
    assert torch.isnan(seen).any(-1).all()
    before = (
        96 if part == "values" else 100
    )  # values are multiplied by the chunk, by 0 where they are not seen
    assert torch.equal(actual[:before], expected[:before])
    assert torch.equal(actual[200:], expected[200:])
    assert torch.equal(actual[:, 2:], expected[:, 2:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_that_vectors_do_not_divide_are_decoded_by_the_whole_team(dtype: torch.dtype) -> None:
    build_if_missing()
    calls: list[int] = []
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    def run_team(work: Any, data: int, num_threads: int) -> None:
        calls.append(num_threads)
        work(data)

    function = ctypes.CFUNCTYPE(None, body, ctypes.c_void_p, ctypes.c_uint)(run_team)
    team = (ctypes.cast(function, ctypes.c_void_p).value, 2)
    ops = CpuOps(replace(NativeLibrary.open({}), team=team))
    shape = Shape(num_heads=3, num_kv_heads=1, head_dim=18, block_size=32, dtype=dtype)
    problem = make_problem(shape, [1, 1, 1])
    run_history(ops, problem, [(0, 1)] * 3)
    assert calls == [2]


def test_no_memory_for_spans_is_an_error(ops: CpuOps) -> None:
    ops = make_ops(isa_of(ops), num_threads=5)
    length, num_heads, block_size, head_dim = 1 << 17, 16, 32, 32
    cache = torch.zeros(1, num_heads, block_size, head_dim).bfloat16()
    table = torch.zeros(1, length // block_size, dtype=torch.int32)
    batch = make_batch([(length - 32, length)], block_size, tables=table)
    query = torch.zeros(32, num_heads, head_dim).bfloat16()
    with no_large_memory(), pytest.raises(MemoryError, match="the kernel paged_attention"):
        ops.paged_attention(query, cache, cache, batch, scale=1.0, window=128)
    output = ops.paged_attention(query, cache, cache, batch, scale=1.0, window=128)
    assert torch.equal(output, torch.zeros(32, 512).bfloat16())
