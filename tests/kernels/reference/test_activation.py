"""The reference activations against float64."""

from __future__ import annotations

import pytest
import torch
from tests.kernels import exact
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_equals_float64(dtype: torch.dtype) -> None:
    gate_up = (5 * torch.randn(3, 2 * 19)).to(dtype)
    assert_close(ReferenceOps().silu_mul(gate_up), exact.silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_mul_equals_float64(dtype: torch.dtype) -> None:
    gate_up = (5 * torch.randn(3, 2 * 19)).to(dtype)
    assert_close(ReferenceOps().gelu_mul(gate_up), exact.gelu_mul(gate_up))
