"""``QuantTensor``: every block format, rows and joins, and what it refuses."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants

from triolet_kernels.quant import QUANT_KINDS, QuantTensor


def make(kind: str, num_rows: int = 6, num_blocks: int = 2, seed: int = 0) -> QuantTensor:
    """Random bytes are valid codes in every format; scales are kept finite by redrawing NaN rows."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    generator = np.random.default_rng(seed)
    # Bytes below 0x78 keep every half-precision scale finite.
    data = generator.integers(0, 0x78, (num_rows, num_blocks * block_bytes), dtype=np.uint8)
    return QuantTensor(torch.from_numpy(data), kind, (num_rows, num_blocks * block_size))


@pytest.mark.parametrize("kind", QUANT_KINDS)
def test_dequantises_every_format(kind: str) -> None:
    tensor = make(kind)
    expected = quants.dequantize(tensor.data.numpy(), GGMLQuantizationType[kind])
    assert torch.equal(tensor.dequantize(), torch.from_numpy(expected))
    assert tuple(tensor.dequantize().shape) == tensor.shape


def test_q4_1_is_scale_times_code_plus_minimum() -> None:
    header = np.array([0.5, -2], dtype=np.float16)
    codes = np.arange(16, dtype=np.uint8) | (15 - np.arange(16, dtype=np.uint8)) << 4
    data = np.concatenate([header.view(np.uint8), codes])
    tensor = QuantTensor(torch.from_numpy(data)[None], "Q4_1", (1, 32))
    expected = [0.5 * code - 2 for code in [*range(16), *range(15, -1, -1)]]
    assert tensor.dequantize()[0].tolist() == expected


@pytest.mark.parametrize("kind", QUANT_KINDS)
def test_many_rows_equal_each_row_alone(kind: str) -> None:
    tensor = make(kind, num_rows=5000, num_blocks=1)
    alone = torch.cat([tensor.rows(slice(row, row + 1)).dequantize() for row in (0, 4095, 4096, 4999)])
    assert torch.equal(tensor.dequantize()[[0, 4095, 4096, 4999]], alone)


def test_rows_follow_the_index() -> None:
    tensor, index = make("Q4_1"), torch.tensor([5, 0, 3])
    picked = tensor.rows(index)
    assert picked.shape == (3, tensor.shape[1])
    assert torch.equal(picked.dequantize(), tensor.dequantize()[index])


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_columns_are_cut_between_blocks(kind: str) -> None:
    weight = make(kind, num_blocks=24 if kind == "Q4_1" else 3)
    assert torch.equal(weight.columns(slice(256, 768)).dequantize(), weight.dequantize()[:, 256:])
    with pytest.raises(ValueError, match="is cut between blocks of"):
        weight.columns(slice(0, 272))


def test_concatenate_joins_rows() -> None:
    first, second = make("Q5_0", seed=1), make("Q5_0", num_rows=2, seed=2)
    joined = QuantTensor.concatenate([first, second])
    assert joined.shape == (8, 64)
    assert torch.equal(joined.dequantize(), torch.cat([first.dequantize(), second.dequantize()]))


def test_concatenate_refuses_mixed_parts() -> None:
    with pytest.raises(ValueError, match="one kind and width"):
        QuantTensor.concatenate([make("Q5_0"), make("Q5_1")])
    with pytest.raises(ValueError, match="one kind and width"):
        QuantTensor.concatenate([make("Q5_0"), make("Q5_0", num_blocks=3)])


@pytest.mark.parametrize(
    ("data", "kind", "shape", "message"),
    [
        (torch.zeros(2, 34, dtype=torch.uint8), "Q9_9", (2, 32), "kind must be one of"),
        (torch.zeros(2, 34, dtype=torch.uint8), "Q8_0", (2, 33), "multiple of 32"),
        (torch.zeros(2, 33, dtype=torch.uint8), "Q8_0", (2, 32), r"shape \(2, 34\)"),
        (torch.zeros(2, 34, dtype=torch.int8), "Q8_0", (2, 32), "uint8"),
    ],
)
def test_refuses_what_does_not_agree(
    data: torch.Tensor, kind: str, shape: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        QuantTensor(data, kind, shape)
