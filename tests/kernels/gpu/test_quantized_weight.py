"""GGUF blocks taken apart, beside the gguf package's own decoding."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.quantized import random_blocks
from torch import Tensor

from triolet_kernels.gpu.quantized_weight import PackedCodes, is_packable, pack_codes
from triolet_kernels.quant import QUANT_KINDS, NotFiniteError

PACKABLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def decoded(packed: PackedCodes) -> Tensor:
    """The values, by the definition in the module."""
    shifts = torch.arange(0, 32, packed.bits, dtype=torch.int32)
    codes = (packed.words[..., None] >> shifts & (1 << packed.bits) - 1).flatten(1).float()
    scales = packed.scales.float().repeat_interleave(packed.group_size, dim=1)
    if packed.minimums is None:
        return scales * (codes - packed.offset)
    return scales * codes + packed.minimums.float().repeat_interleave(packed.group_size, dim=1)


@pytest.mark.parametrize("kind", PACKABLE)
def test_values_are_those_of_the_format(kind: str) -> None:
    weight = random_blocks(kind, 3, 512)
    packed, expected = pack_codes(weight, torch.device("cpu")), weight.dequantize()
    assert packed.shape == (3, 512)
    limit = 2**-10 * expected.abs().max() if "K" in kind else 1e-6 * expected.abs().max()
    assert (decoded(packed) - expected).abs().max() <= limit


def test_the_others_are_not_packable() -> None:
    assert {kind for kind in QUANT_KINDS if is_packable(random_blocks(kind, 1, 256))} == set(PACKABLE)


def test_a_scale_that_is_not_finite_is_refused() -> None:
    weight = random_blocks("Q4_0", 2, 64)
    weight.data[1, 0:2] = torch.tensor([0x00, 0x7C], dtype=torch.uint8)
    with pytest.raises(NotFiniteError):
        pack_codes(weight, torch.device("cpu"))
