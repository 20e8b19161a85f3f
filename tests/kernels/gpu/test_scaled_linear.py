"""Linear layers in 8 bits on a GPU, beside float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_device, interpreted_ops
from tests.kernels.quantized import random_blocks
from tests.paged import PagedModel
from tests.tiny_models import build_tiny_model
from torch import Tensor

from triolet.models.checkpoint import open_checkpoint
from triolet.models.loader import load_model
from triolet.models.source import local_files
from triolet_kernels.gpu import GpuOps
from triolet_kernels.gpu.linear import PackedLinear
from triolet_kernels.gpu.scaled_linear import PackedScaled, ScaledLinearKernels, Scheme

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
        for name in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
        for scheme in ("int8", "fp8")
    }
    assert [key for key, has in found.items() if not has] == [("sm_80", "fp8"), ("sm_86", "fp8")]


@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_weights_of_16_bits_are_rounded_where_that_is_asked_for(scheme: Scheme) -> None:
    ops = GpuOps(interpreted_device("sm_89"), scheme=scheme)
    weight, x = torch.randn(37, 96).bfloat16(), torch.randn(5, 96).bfloat16()
    packed = ops.pack_linear(weight, None, torch.bfloat16)
    assert isinstance(packed, PackedScaled)
    assert torch.equal(ops.linear(x, packed), ops.linear(x, ops.pack_scaled_linear(weight, None, scheme)))
    assert isinstance(ops.pack_linear(weight, None, torch.float32), PackedLinear)
    assert isinstance(ops.pack_vocabulary(weight, None, torch.bfloat16), PackedLinear)
    assert isinstance(ops.pack_router(weight), PackedLinear)
    blocks = random_blocks("Q8_0", 32, 64)
    assert isinstance(ops.pack_linear(blocks, None, torch.bfloat16), PackedLinear)


@pytest.mark.parametrize(
    ("architecture", "scheme", "message"),
    [
        ("sm_90", "int4", "'int4'; on sm_90 it may be int8 or fp8,"),
        ("sm_86", "fp8", "on sm_80 it may be int8,"),
    ],
)
def test_what_a_gpu_does_not_multiply_is_refused(architecture: str, scheme: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GpuOps(interpreted_device(architecture), scheme=scheme)


def test_a_model_in_8_bits_is_near_the_one_in_16(tmp_path: Path) -> None:
    build_tiny_model("mistral-odd").save_pretrained(tmp_path)
    device = interpreted_device()

    def logits_of(ops: GpuOps) -> Tensor:
        with open_checkpoint(local_files(tmp_path)) as checkpoint:
            model = load_model(checkpoint, ops, dtype=torch.bfloat16, device=device.torch_device)
        return PagedModel(model).step_last({0: (3, 9)})

    exact = logits_of(GpuOps(device))
    for scheme, limit in (("int8", 0.1), ("fp8", 0.5)):
        error = (logits_of(GpuOps(device, scheme=scheme)) - exact).norm() / exact.norm()
        assert 0.001 < error < limit, scheme
