"""Linear layers of a mixture of experts on a GPU, beside the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.gpu.interpreted import interpreted_device, interpreted_ops
from tests.kernels.quantized import quantize
from tests.kernels.routing import starts_of
from tests.kernels.tolerance import assert_close

from triolet_kernels.gpu import GpuOps
from triolet_kernels.gpu.quantized_weight import PackedCodes
from triolet_kernels.reference import ReferenceOps


def check(sizes: list[int], dtype: torch.dtype, *, width: int = 72) -> None:
    ops, reference = interpreted_ops(), ReferenceOps()
    weights = list((torch.randn(len(sizes), 70, width) / 8).to(dtype))
    x = torch.randn(sum(sizes), width).to(dtype)
    expected = reference.expert_linear(x, reference.pack_experts(weights, dtype), starts_of(sizes))
    got = ops.expert_linear(x, ops.pack_experts(weights, dtype), starts_of(sizes))
    assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_experts_with_many_rows_few_and_none(dtype: torch.dtype) -> None:
    check([0, 70, 1, 0, 16, 17, 0], dtype)
    check([5], dtype, width=130)


def test_many_rows_of_each_expert() -> None:
    check([150, 0, 129], torch.bfloat16)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any))
def test_any_sizes(sizes: list[int]) -> None:
    check(sizes, torch.float32)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("sizes", [[3, 0, 20], [130, 90, 140]])
def test_quantised_weights_stay_quantised(kind: str, sizes: list[int]) -> None:
    ops, reference = interpreted_ops(), ReferenceOps()
    weights = [quantize(weight, kind) for weight in torch.randn(3, 70, 96) / 8]
    x = torch.randn(sum(sizes), 96)
    packed = ops.pack_experts(weights, x.dtype)
    assert isinstance(packed.weight, PackedCodes)
    expected = reference.expert_linear(x, reference.pack_experts(weights, x.dtype), starts_of(sizes))
    assert_close(ops.expert_linear(x, packed, starts_of(sizes)), expected)


def test_experts_of_more_than_one_format_are_widened() -> None:
    ops, (first, second) = interpreted_ops(), torch.randn(2, 8, 64)
    weights = [quantize(first, "Q4_0"), quantize(second, "Q8_0")]
    packed = ops.pack_experts(weights, torch.bfloat16)
    assert isinstance(packed.weight, torch.Tensor)
    assert torch.equal(packed.weight, torch.cat([one.dequantize() for one in weights]).bfloat16())


def test_a_row_s_result_is_the_same_in_any_company() -> None:
    ops = GpuOps(interpreted_device(), is_batch_invariant=True)
    weights, x = list(torch.randn(2, 9, 64)), torch.randn(140, 64)
    packed = ops.pack_experts(weights, torch.float32)
    together = ops.expert_linear(x, packed, starts_of([138, 2]))
    alone = ops.expert_linear(x[139:], packed, starts_of([0, 1]))
    assert torch.equal(together[139:], alone)
