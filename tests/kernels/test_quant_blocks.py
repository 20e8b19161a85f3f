"""GGUF blocks taken apart, beside the gguf package's own decoding."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.quantized import random_blocks

from triolet_kernels.quant_blocks import FORMATS, take_apart


@pytest.mark.parametrize("kind", list(FORMATS))
def test_values_are_those_of_the_format(kind: str) -> None:
    weight, layout = random_blocks(kind, 3, 512), FORMATS[kind]
    blocks = take_apart(weight)
    assert blocks.codes.shape == (3, 512)
    assert blocks.scales.shape == (3, 512 // layout.group_size)
    assert int(blocks.codes.max()) < 1 << layout.bits
    scales, codes = blocks.scales.repeat_interleave(layout.group_size, dim=1), blocks.codes.float()
    if blocks.minimums is None:
        values = scales * (codes - layout.offset)
    else:
        values = scales * codes + blocks.minimums.repeat_interleave(layout.group_size, dim=1)
    torch.testing.assert_close(values, weight.dequantize(), rtol=1e-6, atol=1e-6)


def test_a_cut_through_the_columns_can_be_taken_apart() -> None:
    weight = random_blocks("Q6_K", 3, 768)
    part = take_apart(weight.columns(slice(256, 512)))
    assert torch.equal(part.codes, take_apart(weight).codes[:, 256:512])
