"""Gated activations on a GPU against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_ops
from tests.kernels.tolerance import assert_close

from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 2), (3, 1536), (5, 6), (2, 2050), (0, 8)])
@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
def test_equals_the_reference(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = (torch.randn(shape) * 4).to(dtype)
    actual = getattr(interpreted_ops(), name)(gate_up)
    assert actual.shape == (shape[0], shape[1] // 2)
    if shape[0]:
        assert_close(actual, getattr(ReferenceOps(), name)(gate_up))


@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
def test_large_values_stay_finite(name: str) -> None:
    gate_up = torch.tensor([[1e4, -1e4, 80.0, -80.0, 1.0, 1.0, 1.0, 1.0]])
    assert_close(getattr(interpreted_ops(), name)(gate_up), getattr(ReferenceOps(), name)(gate_up))
