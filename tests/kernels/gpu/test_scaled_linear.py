"""Linear layers in 8 bits on a GPU, beside float64."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_device, interpreted_ops
from torch import Tensor

from triolet_kernels.gpu.scaled_linear import ScaledLinearKernels, Scheme

RELATIVE_STEP = {"int8": 1 / 254, "fp8": 1 / 16}
"""The largest rounding error: of a row's largest value in int8, of each value in e4m3."""


def expected(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.double() @ weight.double().T + bias.double()


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_within_the_rounding_of_inputs_and_weights(scheme: Scheme, dtype: torch.dtype) -> None:
    ops, bias = interpreted_ops(), torch.randn(37)
    weight, x = torch.randn(37, 200), torch.randn(19, 200).to(dtype)
    x[3] = 0
    got = ops.linear(x, ops.pack_scaled_linear(weight, bias, scheme))
    assert got.dtype == dtype
    exact = expected(x, weight, bias)
    # Errors are independent, so they add up as their squares do; five times that is never seen.
    largest = x.float().abs().amax(1, keepdim=True) * weight.abs().amax(1) if scheme == "int8" else 3.0
    limit = 5 * RELATIVE_STEP[scheme] * largest * 200**0.5 + 0.01 * exact.abs()
    assert ((got.double() - exact).abs() <= limit + 1e-6).all()
    assert torch.allclose(got[3].float(), bias, atol=0.02)


def test_int8_sums_are_exact_hence_the_same_in_any_company() -> None:
    ops = interpreted_ops()
    weight = torch.randint(-127, 128, (20, 96)).float()
    weight[:, 0] = 127
    x = torch.randint(-127, 128, (33, 96)).float()
    x[:, 1] = 127
    packed = ops.pack_scaled_linear(weight, None, "int8")
    assert torch.equal(ops.linear(x, packed), x @ weight.T)
    assert torch.equal(ops.linear(x[20:21], packed), ops.linear(x, packed)[20:21])


def test_not_every_gpu_multiplies_every_kind() -> None:
    found = {
        (name, scheme): ScaledLinearKernels(interpreted_device(name)).has(scheme)
        for name in ("sm_80", "sm_90")
        for scheme in ("int8", "fp8")
    }
    assert [key for key, has in found.items() if not has] == [("sm_80", "fp8")]
