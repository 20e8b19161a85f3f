"""The norms on the CPU against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.cpu import CpuOps
from triolet_kernels.reference import ReferenceOps

SHAPES = [(1, 576), (3, 33), (2, 5), (70, 2048), (1, 16384), (2, 16385), (0, 64)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_equals_the_reference(ops: CpuOps, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    if shape[0]:
        assert_close(ops.rms_norm(x, weight, 1e-5), ReferenceOps().rms_norm(x, weight, 1e-5))
    else:
        assert ops.rms_norm(x, weight, 1e-5).shape == shape


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_rms_norm_of_a_float32_residual(ops: CpuOps, shape: tuple[int, int]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[1])
    actual = ops.rms_norm(x, weight, 1e-5, torch.bfloat16)
    assert actual.dtype == torch.bfloat16
    assert_close(actual, ReferenceOps().rms_norm(x, weight, 1e-5, torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_add_rms_norm_equals_the_reference(ops: CpuOps, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape), torch.randn(shape[1])
    total = residual.clone()
    expected = ReferenceOps().add_rms_norm(x, total, weight, 1e-5)
    assert_close(ops.add_rms_norm(x, residual, weight, 1e-5), expected)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [576, 54, 5])
def test_bits_do_not_depend_on_company(ops: CpuOps, dtype: torch.dtype, size: int) -> None:
    x, residual, weight = torch.randn(300, size).to(dtype), torch.randn(300, size), torch.randn(size)
    normed, total = ops.rms_norm(x, weight, 1e-5), residual.clone()
    added = ops.add_rms_norm(x, total, weight, 1e-5)
    for rows in (slice(123, 124), slice(0, 7), slice(290, 300)):
        some = residual[rows].clone()
        assert torch.equal(normed[rows], ops.rms_norm(x[rows].clone(), weight, 1e-5))
        assert torch.equal(added[rows], ops.add_rms_norm(x[rows].clone(), some, weight, 1e-5))
        assert torch.equal(total[rows], some)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [576, 33, 5])
def test_columns_are_normalised_in_place(ops: CpuOps, dtype: torch.dtype, size: int) -> None:
    x, weight = torch.randn(9, size + 7).to(dtype), torch.randn(size)
    expected = x.clone()
    expected[:, 3 : 3 + size] = ReferenceOps().rms_norm(x[:, 3 : 3 + size], weight, 1e-5)
    ops.norm_columns(x, 3, weight, 1e-5)
    assert_close(x, expected)
    assert torch.equal(x[:, :3], expected[:, :3])
    assert torch.equal(x[:, 3 + size :], expected[:, 3 + size :])
