"""Linear layers and embedding tables on the CPU against the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cpu.variants import ISAS, build_if_missing, make_ops
from tests.kernels.quantized import quantize
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.reference import ReferenceOps

SIZES = [(1, 64, 32), (3, 576, 960), (8, 96, 31), (40, 1536, 576), (65, 32, 7)]


@pytest.fixture(scope="module", params=["torch", *ISAS])
def any_ops(request: pytest.FixtureRequest) -> CpuOps:
    """Without compiled kernels, and with each variant of them."""
    if request.param == "torch":
        return CpuOps(NativeLibrary.missing())
    build_if_missing()
    return make_ops(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_rows", "width", "height"), SIZES)
def test_dense_weights(
    any_ops: CpuOps, dtype: torch.dtype, has_bias: bool, num_rows: int, width: int, height: int
) -> None:
    x, weight = torch.randn(num_rows, width).to(dtype), (torch.randn(height, width) / width**0.5).to(dtype)
    bias = torch.randn(height) if has_bias else None
    actual = any_ops.linear(x, any_ops.pack_linear(weight, bias, dtype))
    expected = ReferenceOps().linear(x, ReferenceOps().pack_linear(weight, bias, dtype))
    assert actual.dtype == dtype
    assert_close(actual, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(any_ops: CpuOps, dtype: torch.dtype) -> None:
    weight, token_ids = quantize(torch.randn(9, 64), "Q8_0"), torch.tensor([8, 0, 8, 3])
    actual = any_ops.embedding(token_ids, any_ops.pack_embedding(weight, dtype))
    expected = ReferenceOps().embedding(token_ids, ReferenceOps().pack_embedding(weight, dtype))
    assert torch.equal(actual, expected)
