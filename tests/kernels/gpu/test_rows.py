"""Copies of rows on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_ops


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 576, 1025])
def test_rows_are_copied(size: int, dtype: torch.dtype) -> None:
    x, rows = torch.randn(6, size).to(dtype), torch.tensor([5, 0, 0, 3])
    assert torch.equal(interpreted_ops().take_rows(x, rows), x[rows])
    assert interpreted_ops().take_rows(x, rows[:0]).shape == (0, size)
