"""Weights put into another format: the same values, or values within the stated bounds."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.quantized import quantize, random_blocks

from triolet_kernels.quant import QUANT_KINDS, QuantTensor
from triolet_kernels.quant_blocks import take_apart
from triolet_kernels.recode import to_q4_1, to_q8_0

EXACT = ("Q4_0", "Q5_0", "Q8_0")


@pytest.mark.parametrize("kind", EXACT)
def test_eight_bits_hold_what_has_one_scale_and_no_minimum(kind: str) -> None:
    weight = random_blocks(kind, 1500, 64)
    recoded = to_q8_0(weight)
    assert recoded.kind == "Q8_0"
    assert torch.equal(recoded.dequantize(), weight.dequantize())


@pytest.mark.parametrize("kind", [kind for kind in QUANT_KINDS if kind not in EXACT])
def test_eight_bits_are_within_their_bound_of_the_others(kind: str) -> None:
    weight = random_blocks(kind, 40, 512)
    expected = weight.dequantize().view(40, -1, 32)
    error = (to_q8_0(weight).dequantize().view_as(expected) - expected).abs().amax(-1)
    largest = expected.abs().amax(-1)
    # The step is a float16, which adds its own rounding to the half step.
    assert (error <= largest * (1 / 254) * (1 + 2**-7)).all()
    assert (error > 0).any()


def test_four_bits_keep_the_codes_of_q4_k() -> None:
    weight = random_blocks("Q4_K", 40, 512)
    recoded, expected = take_apart(to_q4_1(weight)), take_apart(weight)
    assert expected.minimums is not None
    assert recoded.minimums is not None
    assert torch.equal(recoded.codes, expected.codes)
    for actual, exact in ((recoded.scales, expected.scales), (recoded.minimums, expected.minimums)):
        torch.testing.assert_close(actual, exact, rtol=2**-11, atol=2**-25)


def test_zeros_stay_zeros() -> None:
    assert not to_q8_0(quantize(torch.zeros(3, 64), "Q5_1")).dequantize().any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scales_that_are_not_finite_stay_so(value: float) -> None:
    weight = random_blocks("Q5_1", 3, 64)
    data = weight.data.clone()
    data[1, :2] = torch.tensor([value]).half().view(torch.uint8)
    scales = take_apart(to_q8_0(QuantTensor(data, "Q5_1", weight.shape))).scales
    assert torch.isfinite(scales).tolist() == [[True, True], [False, True], [True, True]]
