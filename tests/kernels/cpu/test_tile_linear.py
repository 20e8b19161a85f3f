"""Quantised linear layers on matrix tiles, against float64 where nothing needs rounding."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.cpu.variants import build_if_missing, make_ops
from tests.kernels.quantized import quantize
from torch import Tensor

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.linear import PackedLinear
from triolet_kernels.cpu.tile_linear import PackedTiles
from triolet_kernels.ops import GatedActivation
from triolet_kernels.quant import QuantTensor


@pytest.fixture(scope="module")
def tile_ops() -> CpuOps:
    build_if_missing()
    return make_ops("amx", num_threads=2)


def blocks_of(kind: str, scale: float, minimum: float, codes: Tensor) -> QuantTensor:
    """``codes (out, in)`` with one scale and minimum for all, as the GGUF format ``kind``."""
    num_outputs, width = codes.shape
    blocks = codes.view(num_outputs, -1, 32).to(torch.uint8)
    if kind != "Q8_0":
        blocks = blocks[..., :16] | blocks[..., 16:] << 4
    scales = torch.tensor([scale, minimum][: 2 if kind == "Q4_1" else 1]).half().view(torch.uint8)
    head = scales.expand(*blocks.shape[:2], -1)
    return QuantTensor(torch.cat([head, blocks], dim=-1).flatten(1), kind, (num_outputs, width))


@pytest.mark.parametrize(("kind", "low", "high"), [("Q4_0", 0, 16), ("Q4_1", 0, 16), ("Q8_0", -100, 100)])
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**-6, 2.0**9])
def test_every_code_of_every_place(tile_ops: CpuOps, kind: str, low: int, high: int, scale: float) -> None:
    weight = blocks_of(kind, scale, -3 * scale, torch.randint(low, high, (70, 96)))
    x = torch.eye(96).bfloat16()
    actual = tile_ops.linear(x, tile_ops.pack_linear(weight, None, torch.bfloat16))
    expected = weight.dequantize()
    assert torch.equal(actual.T.float()[expected != 0], expected[expected != 0])
    assert (actual.T.float() - expected).abs().max() <= 2.0**-28 * expected.abs().max()


def test_zeros_weigh_nothing(tile_ops: CpuOps) -> None:
    weight = blocks_of("Q4_0", 0.0, 0.0, torch.full((32, 64), 8))
    bias = torch.randn(32)
    x = torch.randn(5, 64).bfloat16()
    actual = tile_ops.linear(x, tile_ops.pack_linear(weight, bias, torch.bfloat16))
    assert torch.equal(actual, bias.bfloat16().expand(5, -1))
    mixed = blocks_of("Q4_0", 1.0, 0.0, torch.tensor([[8] * 32 + [9] * 32]).repeat(32, 1))
    x = torch.cat([torch.full((1, 32), 1e4), torch.zeros(1, 32)], dim=1).bfloat16()
    assert tile_ops.linear(x, tile_ops.pack_linear(mixed, None, torch.bfloat16)).abs().max() < 1e-2


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 100.0])
def test_error_is_that_of_bfloat16(tile_ops: CpuOps, kind: str, magnitude: float) -> None:
    x, weight = torch.randn(40, 1536).bfloat16(), quantize(magnitude * torch.randn(96, 1536), kind)
    packed = tile_ops.pack_linear(weight, None, torch.bfloat16)
    assert isinstance(packed, PackedLinear)
    assert isinstance(packed.weight, PackedTiles)
    actual, expected = tile_ops.linear(x, packed).double(), x.double() @ weight.dequantize().double().T
    assert (actual - expected).norm() / expected.norm() < 3e-3


def test_codes_take_the_memory_they_took_in_the_file(tile_ops: CpuOps) -> None:
    weight = quantize(torch.randn(64, 576), "Q4_1")
    packed = tile_ops.pack_linear(weight, None, torch.bfloat16)
    assert isinstance(packed.weight, PackedTiles)
    assert packed.weight.data.nbytes == weight.data.nbytes


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("width", [32, 64, 96, 576, 608, 1536])
def test_a_row_has_the_same_bits_in_any_company(tile_ops: CpuOps, kind: str, width: int) -> None:
    """Few rows go through blocks that have just been spread out, many through those that lie ready."""
    packed = tile_ops.pack_linear(quantize(torch.randn(70, width), kind), torch.randn(70), torch.bfloat16)
    x = torch.randn(530, width).bfloat16()
    together = tile_ops.linear(x, packed)
    for first, end in [(0, 1), (7, 9), (20, 52), (31, 64), (300, 365), (512, 530)]:
        assert torch.equal(tile_ops.linear(x[first:end].contiguous(), packed), together[first:end])


@pytest.mark.parametrize(("width", "num_outputs"), [(576, 200), (640, 1000), (4160, 70), (8224, 33)])
def test_bits_do_not_depend_on_how_work_is_shared(width: int, num_outputs: int) -> None:
    """Many rows are shared out as well as panels; of wide panels few are spread out at a time."""
    weight, x = quantize(torch.randn(num_outputs, width), "Q4_1"), torch.randn(300, width).bfloat16()
    alone, *others = [
        ops.linear(x, ops.pack_linear(weight, None, torch.bfloat16))
        for ops in (make_ops("amx", num_threads) for num_threads in (1, 2, 3))
    ]
    expected = x.double() @ weight.dequantize().double().T
    assert (alone.double() - expected).norm() / expected.norm() < 3e-3
    for other in others:
        assert torch.equal(other, alone)


@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize(
    ("width", "num_outputs"), [(96, 64), (576, 1536), (1536, 448), (4160, 96), (8224, 32)]
)
def test_gates_have_the_same_bits_in_any_company(
    tile_ops: CpuOps, activation: GatedActivation, width: int, num_outputs: int
) -> None:
    weight = quantize(torch.randn(2 * num_outputs, width) / width**0.5, "Q4_1")
    packed = tile_ops.pack_linear(weight, torch.randn(2 * num_outputs), torch.bfloat16)
    x = torch.randn(300, width).bfloat16()
    together = tile_ops.gated_linear(x, packed, activation)
    assert torch.equal(make_ops("amx", num_threads=1).gated_linear(x, packed, activation), together)
    for first, end in [(0, 1), (7, 9), (20, 52), (31, 64), (150, 299)]:
        part = tile_ops.gated_linear(x[first:end].contiguous(), packed, activation)
        assert torch.equal(part, together[first:end])
    apart = tile_ops.linear(x, packed)
    expected = (tile_ops.silu_mul if activation == "silu" else tile_ops.gelu_mul)(apart).float()
    assert (together.float() - expected).norm() / expected.norm() < 1e-2
