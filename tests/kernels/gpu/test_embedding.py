"""Embedding tables on a GPU, beside the reference."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_ops
from tests.kernels.gpu.test_quantized_weight import PACKABLE
from tests.kernels.quantized import random_blocks
from tests.kernels.tolerance import assert_close

from triolet_kernels.gpu.quantized_weight import PackedCodes
from triolet_kernels.reference import ReferenceOps

TOKEN_IDS = torch.tensor([4, 0, 4, 2])


@pytest.mark.parametrize("kind", PACKABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_quantised_tables_are_decoded(kind: str, dtype: torch.dtype) -> None:
    ops, reference, weight = interpreted_ops(), ReferenceOps(), random_blocks(kind, 5, 1280)
    packed = ops.pack_embedding(weight, dtype)
    assert isinstance(packed.weight, PackedCodes)
    got = ops.embedding(TOKEN_IDS, packed)
    expected = reference.embedding(TOKEN_IDS, reference.pack_embedding(weight, dtype))
    scale = expected.abs().max().float()
    assert got.dtype == dtype
    assert_close((got.float() / scale).bfloat16(), (expected.float() / scale).bfloat16())
    assert ops.embedding(TOKEN_IDS[:0], packed).shape == (0, 1280)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_other_tables_are_copied(dtype: torch.dtype) -> None:
    ops, weight = interpreted_ops(), torch.randn(5, 24)
    got = ops.embedding(TOKEN_IDS, ops.pack_embedding(weight, dtype))
    assert torch.equal(got, weight[TOKEN_IDS].to(dtype))
    quantized = random_blocks("Q3_K", 5, 256)
    decoded = ops.embedding(TOKEN_IDS, ops.pack_embedding(quantized, torch.float32))
    assert torch.equal(decoded, quantized.dequantize()[TOKEN_IDS])
