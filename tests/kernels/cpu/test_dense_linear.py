"""Dense linear kernels: against the reference, and bit-equality whatever the company."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.cpu.variants import isa_of, make_ops
from tests.kernels.memory_limit import LARGE, no_large_memory
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.cpu import CpuOps

SHAPES = [(64, 32), (576, 960), (96, 31), (77, 70), (1, 1), (33, 64), (1536, 100), (2500, 40)]
"""Width and height: whole panels and tiles and not, several blocks of inputs and one."""

NUM_ROWS = 75


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 16, 17, 40, NUM_ROWS])
def test_equals_float64(ops: CpuOps, dtype: torch.dtype, width: int, height: int, num_rows: int) -> None:
    x, weight = torch.randn(num_rows, width).to(dtype), (torch.randn(height, width) / width**0.5).to(dtype)
    bias = torch.randn(height)
    actual = ops.linear(x, ops.pack_linear(weight, bias, dtype))
    assert_close(actual, x.double() @ weight.double().T + bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "height"), SHAPES)
def test_bits_of_a_row_do_not_depend_on_company(
    ops: CpuOps, dtype: torch.dtype, width: int, height: int
) -> None:
    packed = ops.pack_linear(torch.randn(height, width), torch.randn(height), dtype)
    x = torch.randn(NUM_ROWS, width).to(dtype)
    together = ops.linear(x, packed)
    for start, end in ((0, 1), (74, 75), (5, 7), (3, 20), (2, 50), (40, 75), (7, 71), (0, 13), (0, 32)):
        assert torch.equal(ops.linear(x[start:end].clone(), packed), together[start:end])
    shuffled = torch.randperm(NUM_ROWS)
    assert torch.equal(ops.linear(x[shuffled], packed), together[shuffled])


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_an_output_do_not_depend_on_its_place(ops: CpuOps, dtype: torch.dtype) -> None:
    weight, x = torch.randn(100, 600), torch.randn(20, 600).to(dtype)
    all_outputs = ops.linear(x, ops.pack_linear(weight, None, dtype))
    for start, end in ((0, 1), (31, 33), (5, 70), (99, 100)):
        some = ops.linear(x, ops.pack_linear(weight[start:end], None, dtype))
        assert torch.equal(some, all_outputs[:, start:end])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 9, 200])
def test_bits_do_not_depend_on_the_number_of_threads(ops: CpuOps, dtype: torch.dtype, num_rows: int) -> None:
    packed = ops.pack_linear(torch.randn(1000, 1100), None, dtype)
    x = torch.randn(num_rows, 1100).to(dtype)
    alone = ops.linear(x, packed)
    for num_threads in (2, 5):
        assert torch.equal(make_ops(isa_of(ops), num_threads).linear(x, packed), alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [64, 77])
def test_a_row_that_is_not_finite_leaves_the_others_alone(
    ops: CpuOps, dtype: torch.dtype, width: int
) -> None:
    packed = ops.pack_linear(torch.randn(40, width), None, dtype)
    x = torch.randn(35, width).to(dtype)
    expected = ops.linear(x, packed)
    x[3], x[20, 5] = math.nan, math.inf
    actual = ops.linear(x, packed)
    assert not torch.isfinite(actual[[3, 20]]).any()
    others = [row for row in range(35) if row not in (3, 20)]
    assert torch.equal(actual[others], expected[others])


def test_no_memory_for_padded_rows_is_an_error(ops: CpuOps) -> None:
    packed = ops.pack_linear(torch.randn(1, 33), None, torch.bfloat16)
    x = torch.ones(LARGE // 128, 33).bfloat16()
    with no_large_memory(), pytest.raises(MemoryError, match="the kernel dense_linear"):
        ops.linear(x, packed)
    assert torch.isfinite(ops.linear(x[:9], packed)).all()


def test_torch_has_nothing_to_do(ops: CpuOps) -> None:
    for dtype in DTYPES:
        ops.pack_linear(torch.randn(8, 8), None, dtype)
    assert not ops.uses_torch_threads
