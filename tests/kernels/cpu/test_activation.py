"""The gated activations on the CPU against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.cpu import CpuOps
from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1536), (3, 19), (90, 512), (0, 8)])
@pytest.mark.parametrize("scale", [1, 60])
def test_equal_the_reference(ops: CpuOps, dtype: torch.dtype, shape: tuple[int, int], scale: float) -> None:
    gate_up = (scale * torch.randn(shape[0], 2 * shape[1])).to(dtype)
    for actual, expected in (
        (ops.silu_mul(gate_up), ReferenceOps().silu_mul(gate_up)),
        (ops.gelu_mul(gate_up), ReferenceOps().gelu_mul(gate_up)),
    ):
        if shape[0]:
            assert_close(actual, expected)
        assert actual.shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1536, 77])
def test_bits_do_not_depend_on_company(ops: CpuOps, dtype: torch.dtype, width: int) -> None:
    gate_up = torch.randn(90, 2 * width).to(dtype)
    for function in (ops.silu_mul, ops.gelu_mul):
        together = function(gate_up)
        for rows in (slice(0, 1), slice(37, 42), slice(89, 90)):
            assert torch.equal(function(gate_up[rows].clone()), together[rows])
