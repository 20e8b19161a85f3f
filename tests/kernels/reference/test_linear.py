"""The reference linear layer and embedding, with plain and with quantised weights."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.quantized import quantize
from tests.kernels.tolerance import DTYPES, assert_close

from triolet_kernels.reference import ReferenceOps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_equals_float64(dtype: torch.dtype, has_bias: bool) -> None:
    x, weight = torch.randn(3, 40).to(dtype), torch.randn(7, 40).to(dtype)
    bias = torch.randn(7) if has_bias else None
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    ops = ReferenceOps()
    actual = ops.linear(x, ops.pack_linear(weight, bias, dtype))
    assert actual.dtype == dtype
    assert_close(actual, expected)


def test_linear_takes_a_quantised_weight() -> None:
    x, weight = torch.randn(3, 64), quantize(torch.randn(5, 64), "Q8_0")
    ops = ReferenceOps()
    actual = ops.linear(x, ops.pack_linear(weight, None, torch.float32))
    assert_close(actual, x.double() @ weight.dequantize().double().T)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_hands_out_rows_in_the_asked_dtype(dtype: torch.dtype) -> None:
    weight, token_ids = quantize(torch.randn(9, 32), "Q8_0"), torch.tensor([8, 0, 8, 3])
    ops = ReferenceOps()
    actual = ops.embedding(token_ids, ops.pack_embedding(weight, dtype))
    assert torch.equal(actual, weight.dequantize()[token_ids].to(dtype))
