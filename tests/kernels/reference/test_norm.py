"""The reference norms against float64."""

from __future__ import annotations

import pytest
import torch
from tests.kernels import exact
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_equals_float64(dtype: torch.dtype) -> None:
    x, weight = torch.randn(5, 33).to(dtype), torch.randn(33).to(dtype)
    assert_close(ReferenceOps().rms_norm(x, weight, 1e-5), exact.rms_norm(x, weight, 1e-5))


def test_rms_norm_of_large_bfloat16_values_does_not_overflow() -> None:
    x = torch.full((1, 64), 1e18, dtype=torch.bfloat16)
    assert_close(ReferenceOps().rms_norm(x, torch.ones(64), 1e-5), torch.ones(1, 64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_adds_in_place_and_normalises_the_sum(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(5, 33).to(dtype), torch.randn(5, 33), torch.randn(33)
    total = residual + x
    actual = ReferenceOps().add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert actual.dtype == dtype
    assert_close(actual, exact.rms_norm(total, weight, 1e-5).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [576, 33, 5])
def test_columns_are_normalised_in_place(dtype: torch.dtype, size: int) -> None:
    x, weight = torch.randn(9, size + 7).to(dtype), torch.randn(size)
    expected = x.clone()
    expected[:, 3 : 3 + size] = ReferenceOps().rms_norm(x[:, 3 : 3 + size], weight, 1e-5)
    ReferenceOps().norm_columns(x, 3, weight, 1e-5)
    assert_close(x, expected)
    assert torch.equal(x[:, :3], expected[:, :3])
    assert torch.equal(x[:, 3 + size :], expected[:, 3 + size :])
