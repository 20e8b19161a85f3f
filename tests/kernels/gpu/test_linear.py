"""Linear layers on a GPU, beside the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_device, interpreted_ops
from tests.kernels.gpu.test_quantized_weight import PACKABLE
from tests.kernels.quantized import quantize, random_blocks
from tests.kernels.tolerance import assert_close
from torch import Tensor

from triolet_kernels.gpu import GpuOps
from triolet_kernels.gpu.quantized_weight import PackedCodes
from triolet_kernels.quant import QuantTensor
from triolet_kernels.reference import ReferenceOps

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def assert_like_the_reference(
    ops: GpuOps, x: Tensor, weight: Tensor | QuantTensor, bias: Tensor | None = None
) -> None:
    reference = ReferenceOps()
    expected = reference.linear(x, reference.pack_linear(weight, bias, x.dtype))
    assert_close(ops.linear(x, ops.pack_linear(weight, bias, x.dtype)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 5, 70])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_quantised_weights_stay_so(kind: str, num_rows: int, dtype: torch.dtype) -> None:
    ops, weight = interpreted_ops(), quantize(torch.randn(75, 352) / 20, kind)
    assert isinstance(ops.pack_linear(weight, None, dtype).weight, PackedCodes)
    assert_like_the_reference(ops, torch.randn(num_rows, 352).to(dtype), weight, torch.randn(75))


@pytest.mark.parametrize("kind", PACKABLE)
@pytest.mark.parametrize("num_rows", [1, 3])
def test_every_format_is_multiplied(kind: str, num_rows: int) -> None:
    weight = random_blocks(kind, 33, 768)
    assert_like_the_reference(interpreted_ops(), torch.randn(num_rows, 768).bfloat16() / 40, weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dense_weights_and_other_formats_are_multiplied(dtype: torch.dtype) -> None:
    x = torch.randn(4, 256).to(dtype)
    assert_like_the_reference(interpreted_ops(), x, torch.randn(7, 256).to(dtype) / 16, torch.randn(7))
    assert_like_the_reference(interpreted_ops(), x / 16, random_blocks("Q2_K", 5, 256))


def test_for_many_rows_quantised_weights_are_widened_once() -> None:
    weight = quantize(torch.randn(20, 64) / 8, "Q4_1")
    assert_like_the_reference(interpreted_ops(), torch.randn(257, 64).bfloat16(), weight, torch.randn(20))


def test_no_rows_give_no_rows() -> None:
    ops = interpreted_ops()
    packed = ops.pack_linear(quantize(torch.randn(8, 64), "Q4_1"), None, torch.bfloat16)
    assert ops.linear(torch.empty(0, 64, dtype=torch.bfloat16), packed).shape == (0, 8)


@pytest.mark.parametrize("is_quantized", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_s_result_is_the_same_in_any_company(is_quantized: bool, dtype: torch.dtype) -> None:
    ops = GpuOps(interpreted_device(), is_batch_invariant=True)
    weight = torch.randn(70, 640) / 25
    x, bias = torch.randn(66, 640).to(dtype), torch.randn(70)
    packed = ops.pack_linear(quantize(weight, "Q4_1") if is_quantized else weight.to(dtype), bias, dtype)
    together = ops.linear(x, packed)
    assert torch.equal(ops.linear(x[:1], packed), together[:1])
    assert torch.equal(ops.linear(x[3:20], packed), together[3:20])
    reference = ReferenceOps()
    expected = reference.pack_linear(
        quantize(weight, "Q4_1") if is_quantized else weight.to(dtype), bias, dtype
    )
    assert_close(together, reference.linear(x, expected))
