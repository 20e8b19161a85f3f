"""The thin objects over the operations, and the fusing of matrices."""

from __future__ import annotations

import gguf
import pytest
import torch
from torch import Tensor

from triolet.models.layers import Embedding, Linear, RMSNorm, fuse_rows
from triolet_kernels.ops import Ops, select_ops
from triolet_kernels.quant import QuantTensor


@pytest.fixture
def ops() -> Ops:
    return select_ops(torch.device("cpu"), is_reference=True)


def random_matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def quantise(weight: Tensor, kind: str) -> QuantTensor:
    blocks = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind])
    return QuantTensor(torch.from_numpy(blocks), kind, (weight.shape[0], weight.shape[1]))


def test_linear_adds_its_bias(ops: Ops) -> None:
    weight, bias, x = random_matrix(5, 8), torch.arange(5.0), random_matrix(3, 8, 1)
    layer = Linear(ops, weight, bias, torch.float32)
    torch.testing.assert_close(layer(x), x @ weight.T + bias)


def test_embedding_rounds_its_multiplier_to_the_number_format(ops: Ops) -> None:
    table = torch.ones(4, 8)
    token_ids = torch.tensor([3, 0])
    exact = Embedding(ops, table, torch.float32, multiplier=3072**0.5)(token_ids)
    rounded = Embedding(ops, table, torch.bfloat16, multiplier=3072**0.5)(token_ids)
    assert exact[0, 0].item() == pytest.approx(55.4256, abs=1e-4)
    assert rounded[0, 0].item() == 55.5


def test_embedding_leaves_its_table_alone(ops: Ops) -> None:
    layer = Embedding(ops, torch.ones(4, 8), torch.float32, multiplier=2.0)
    for _ in range(2):
        assert layer(torch.tensor([1]))[0, 0].item() == 2.0


def test_norm_adds_in_place(ops: Ops) -> None:
    norm = RMSNorm(ops, torch.full((8,), 2.0), 1e-6, torch.float32)
    x, residual = random_matrix(3, 8), random_matrix(3, 8, 1)
    total = x + residual
    torch.testing.assert_close(norm.add(x, residual), norm(total))
    torch.testing.assert_close(residual, total)


def test_fusing_one_kind_stays_quantised() -> None:
    parts = [quantise(random_matrix(rows, 64, rows), "Q8_0") for rows in (4, 2, 2)]
    fused = fuse_rows(parts, torch.bfloat16)
    assert isinstance(fused, QuantTensor)
    assert fused.kind == "Q8_0"
    torch.testing.assert_close(fused.dequantize(), torch.cat([part.dequantize() for part in parts]))


def test_fusing_different_kinds_takes_eight_bits() -> None:
    parts = [
        quantise(random_matrix(rows, 64, rows), kind)
        for rows, kind in ((4, "Q5_0"), (2, "Q8_0"), (3, "Q4_0"))
    ]
    fused = fuse_rows(parts, torch.bfloat16)
    assert isinstance(fused, QuantTensor)
    assert fused.kind == "Q8_0"
    torch.testing.assert_close(
        fused.dequantize(), torch.cat([part.dequantize() for part in parts]), rtol=0, atol=0
    )


@pytest.mark.parametrize("is_dense", [False, True])
def test_fusing_different_kinds_for_exact_values_dequantises(is_dense: bool) -> None:
    parts = [quantise(random_matrix(4, 64), "Q8_0"), quantise(random_matrix(2, 64, 1), "Q4_1")]
    dense = [random_matrix(2, 64, 2).bfloat16()] if is_dense else []
    fused = fuse_rows([*parts, *dense], torch.bfloat16 if is_dense else torch.float32)
    assert isinstance(fused, Tensor)
    expected = torch.cat([*[part.dequantize() for part in parts], *[part.float() for part in dense]])
    torch.testing.assert_close(fused, expected, rtol=0, atol=0)


def test_fusing_dense_weights_keeps_their_number_format() -> None:
    fused = fuse_rows([random_matrix(4, 6).bfloat16(), random_matrix(2, 6).bfloat16()], torch.bfloat16)
    assert isinstance(fused, Tensor)
    assert fused.dtype == torch.bfloat16
    assert fused.shape == (6, 6)


def test_a_single_weight_is_taken_as_it_is() -> None:
    weight = random_matrix(4, 6)
    assert fuse_rows([weight], torch.bfloat16) is weight
