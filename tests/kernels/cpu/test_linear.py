"""Linear layers and embedding tables on the CPU against the reference."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels import exact
from tests.kernels.cpu.variants import ISAS, build_if_missing, make_ops
from tests.kernels.memory_limit import LARGE, no_large_memory
from tests.kernels.quantized import quantize, random_blocks
from tests.kernels.tolerance import DTYPES, assert_close
from torch import Tensor

from triolet_kernels.cpu import CpuOps, packed_weight
from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.quant import NotFiniteError, QuantTensor
from triolet_kernels.reference import ReferenceOps

ROUNDING = ("cpu-avx512", "cpu-avx2")
"""The variants whose kernel rounds inputs to int8."""

SIZES = [(1, 64, 32), (3, 576, 960), (8, 96, 31), (50, 1536, 576), (65, 32, 7)]


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
@pytest.mark.parametrize("kind", ["dense", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize(
    ("num_rows", "width", "height"), [(1, 576, 1536), (50, 64, 31), (3, 96, 16), (70, 1536, 64)]
)
def test_gated_linear(
    any_ops: CpuOps, dtype: torch.dtype, kind: str, num_rows: int, width: int, height: int
) -> None:
    x, weight = torch.randn(num_rows, width).to(dtype), torch.randn(2 * height, width) / width**0.5
    kept = weight.to(dtype) if kind == "dense" else quantize(weight, kind)
    bias = torch.randn(2 * height)
    packed = any_ops.pack_linear(kept, bias, dtype)
    values = kept.dequantize() if isinstance(kept, QuantTensor) else kept
    gate_up = x.double() @ values.double().T + bias.double()
    for activation, expected in (("silu", exact.silu_mul(gate_up)), ("gelu", exact.gelu_mul(gate_up))):
        actual = any_ops.gated_linear(x, packed, activation)  # type: ignore[arg-type]
        assert (actual.shape, actual.dtype) == ((num_rows, height), dtype)
        assert (actual.double() - expected).norm() <= (
            1e-5 if dtype == torch.float32 else 2e-2
        ) * expected.norm()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_embedding(any_ops: CpuOps, dtype: torch.dtype, kind: str) -> None:
    weight, token_ids = quantize(torch.randn(9, 64), kind), torch.tensor([8, 0, 8, 3])
    actual = any_ops.embedding(token_ids, any_ops.pack_embedding(weight, dtype))
    expected = ReferenceOps().embedding(token_ids, ReferenceOps().pack_embedding(weight, dtype))
    assert torch.equal(actual, expected)


def test_scales_of_an_embedding_may_be_any_finite_float16(any_ops: CpuOps) -> None:
    scales = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    scales = scales[scales.isfinite()][::15].contiguous()
    blocks = torch.randint(256, (len(scales), 34), dtype=torch.uint8)
    blocks[:, :2] = scales.view(torch.uint8).view(-1, 2)
    weight = QuantTensor(blocks, "Q8_0", (len(scales), 32))
    packed = any_ops.pack_embedding(weight, torch.float32)
    assert torch.equal(any_ops.embedding(torch.arange(len(scales)), packed), weight.dequantize())


def test_blocks_with_an_outlier_are_rounded_finer(any_ops: CpuOps) -> None:
    x, weight = torch.randn(9, 576), quantize(torch.randn(70, 576) / 24, "Q4_1")
    x[2:5, 40] = 300
    x = x.bfloat16()
    actual = any_ops.linear(x, any_ops.pack_linear(weight, None, torch.bfloat16))[2:5].double()
    expected = x[2:5].double() @ weight.dequantize().double().T
    # With steps of 300 / 127 alone the values beside the outlier would be lost: an error several times this.
    assert (actual - expected).norm() / expected.norm() < 3e-3


def round_to_int8(x: Tensor) -> Tensor:
    """``x`` as the compiled kernel sees it: blocks of 32 as multiples of a 127th of their largest value."""
    blocks = x.float().view(len(x), -1, 32)
    steps = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(steps > 0, (blocks / steps).round() * steps, blocks).flatten(-2)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_rows", "width", "height"), SIZES)
def test_quantised_weights(
    any_ops: CpuOps, kind: str, has_bias: bool, num_rows: int, width: int, height: int
) -> None:
    x, weight = (
        torch.randn(num_rows, width).bfloat16(),
        quantize(torch.randn(height, width) / width**0.5, kind),
    )
    x[0] = 0
    bias = torch.randn(height) if has_bias else None
    actual = any_ops.linear(x, any_ops.pack_linear(weight, bias, torch.bfloat16))
    inputs = round_to_int8(x) if any_ops.name in ROUNDING else x.float()
    expected = inputs.double() @ weight.dequantize().double().T + (0 if bias is None else bias)
    assert_close(actual, expected)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_tall_weight_is_packed_in_parts(
    any_ops: CpuOps, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = quantize(torch.randn(200, 64), kind), torch.randn(9, 64).bfloat16()
    expected = any_ops.linear(x, any_ops.pack_linear(weight, None, torch.bfloat16))
    monkeypatch.setattr(packed_weight, "_BYTES_AT_A_TIME", 100 * weight.data.shape[1])
    actual = any_ops.linear(x, any_ops.pack_linear(weight, None, torch.bfloat16))
    assert torch.equal(actual, expected)


def test_float32_with_quantised_weights_is_exact(any_ops: CpuOps) -> None:
    x, weight = torch.randn(3, 96), quantize(torch.randn(7, 96), "Q4_1")
    actual = any_ops.linear(x, any_ops.pack_linear(weight, None, torch.float32))
    assert_close(actual, x.double() @ weight.dequantize().double().T)


def test_formats_that_are_kept_in_another_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    build_if_missing()
    ops, weight = make_ops("avx2"), torch.randn(7, 96)
    with caplog.at_level("INFO", "triolet.kernels"):
        for kind, dtype in (("Q5_1", torch.bfloat16), ("Q8_0", torch.bfloat16), ("Q5_1", torch.bfloat16),
                            ("Q8_0", torch.float32)):  # fmt: skip
            ops.pack_linear(quantize(weight, kind), None, dtype)
    assert [record.getMessage().partition(", for")[0] for record in caplog.records] == [
        "weights in Q5_1 are kept in Q8_0",
        "weights in Q8_0 are kept in float32",
    ]
    assert "1.4 times their size" in caplog.text
    assert "3.8 times their size" in caplog.text


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_the_other_formats_have_a_kernel_too(any_ops: CpuOps, kind: str) -> None:
    x, weight = torch.randn(9, 512).bfloat16(), random_blocks(kind, 70, 512)
    actual = any_ops.linear(x, any_ops.pack_linear(weight, None, torch.bfloat16))
    expected = x.double() @ weight.dequantize().double().T
    # Beside the rounding of inputs and outputs, that of the weights (see recode): to 8 bits where it is most.
    assert (actual - expected).norm() / expected.norm() < 1e-2


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_1"])
@pytest.mark.parametrize("width", [32, 64, 576, 1536])
def test_bits_of_a_row_do_not_depend_on_company(ops: CpuOps, kind: str, width: int) -> None:
    weight, bias = quantize(torch.randn(70, width), kind), torch.randn(70)
    packed = ops.pack_linear(weight, bias, torch.bfloat16)
    x = torch.randn(550, width).bfloat16()
    x[3::5, 20::250] = 90
    together = ops.linear(x, packed)
    for count in (*range(1, 66), 100, 257, 513):
        start = (7 * count) % (550 - count)
        alone = ops.linear(x[start : start + count].clone(), packed)
        assert torch.equal(alone, together[start : start + count])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q5_1"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_leaves_the_others_alone(any_ops: CpuOps, kind: str, value: float) -> None:
    width = 96
    packed = any_ops.pack_linear(quantize(torch.randn(70, width), kind), torch.randn(70), torch.bfloat16)
    x = torch.randn(width, width).bfloat16()
    expected = any_ops.linear(x, packed)
    rows = torch.arange(width) % 5 == 3
    x[rows, torch.arange(width)[rows]] = value  # in each place of a block
    actual = any_ops.linear(x, packed)
    assert not torch.isfinite(actual[rows]).any()
    assert torch.equal(actual[~rows], expected[~rows])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("isa", ["amx", "avx512", "avx2"])
def test_scales_that_are_not_finite_are_refused(isa: str, kind: str, value: float) -> None:
    weight = quantize(torch.randn(40, 64), kind)
    data = weight.data.clone()
    data[3, :2] = torch.tensor([value]).half().view(torch.uint8)
    damaged = QuantTensor(data, kind, weight.shape)
    with pytest.raises(NotFiniteError, match="a scale is infinite or not a number"):
        make_ops(isa).pack_linear(damaged, None, torch.bfloat16)


@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_no_memory_for_the_rounded_inputs_is_an_error(isa: str) -> None:
    ops, width = make_ops(isa), 256
    packed = ops.pack_linear(quantize(torch.randn(1, width), "Q4_1"), None, torch.bfloat16)
    x = torch.ones(LARGE // width, width).bfloat16()
    with no_large_memory(), pytest.raises(MemoryError, match="the kernel linear"):
        ops.linear(x, packed)
    assert torch.isfinite(ops.linear(x[:9], packed)).all()


def test_goes_with_other_users_of_matrix_tiles(any_ops: CpuOps) -> None:
    x, weight = torch.randn(64, 576).bfloat16(), quantize(torch.randn(96, 576) / 24, "Q4_1")
    packed = [any_ops.pack_linear(w, None, torch.bfloat16) for w in (weight, weight.dequantize())]
    expected = x.double() @ weight.dequantize().double().T
    for _ in range(3):
        for each in packed:
            assert_close(any_ops.linear(x, each), expected)
