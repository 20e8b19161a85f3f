"""The norms on a GPU against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_ops
from tests.kernels.tolerance import assert_close

from triolet_kernels.gpu.norm import MAX_SIZE
from triolet_kernels.reference import ReferenceOps

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = [(1, 576), (3, 33), (2, 5), (7, 2048), (1, 8193), (1, MAX_SIZE + 1), (0, 64)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_equals_the_reference(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[1]).to(dtype)
    actual = interpreted_ops().rms_norm(x, weight, 1e-5)
    if shape[0]:
        assert_close(actual, ReferenceOps().rms_norm(x, weight, 1e-5))
    assert actual.shape == shape


def test_rms_norm_of_a_float32_residual() -> None:
    x, weight = torch.randn(3, 576), torch.randn(576)
    actual = interpreted_ops().rms_norm(x, weight, 1e-5, torch.bfloat16)
    assert actual.dtype == torch.bfloat16
    assert_close(actual, ReferenceOps().rms_norm(x, weight, 1e-5, torch.bfloat16))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_add_rms_norm_equals_the_reference(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, residual, weight = torch.randn(shape).to(dtype), torch.randn(shape), torch.randn(shape[1])
    total = residual.clone()
    expected = ReferenceOps().add_rms_norm(x, total, weight, 1e-5)
    assert_close(interpreted_ops().add_rms_norm(x, residual, weight, 1e-5), expected)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("size", [576, 54, 5])
def test_bits_do_not_depend_on_company(size: int) -> None:
    x, residual, weight = torch.randn(9, size).bfloat16(), torch.randn(9, size), torch.randn(size)
    together = interpreted_ops().add_rms_norm(x, residual.clone(), weight, 1e-5)
    alone = interpreted_ops().add_rms_norm(x[4:5], residual[4:5].clone(), weight, 1e-5)
    assert torch.equal(together[4:5], alone)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [576, 33, MAX_SIZE + 1])
def test_columns_are_normalised_in_place(dtype: torch.dtype, size: int) -> None:
    x, weight = torch.randn(9, size + 7).to(dtype), torch.randn(size)
    expected = x.clone()
    expected[:, 3 : 3 + size] = ReferenceOps().rms_norm(x[:, 3 : 3 + size], weight, 1e-5)
    interpreted_ops().norm_columns(x, 3, weight, 1e-5)
    assert_close(x, expected)
    assert torch.equal(x[:, :3], expected[:, :3])
    assert torch.equal(x[:, 3 + size :], expected[:, 3 + size :])
