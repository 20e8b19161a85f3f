"""Keys and values of 8 bits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triolet_kernels.reference.cache_codes import decode, encode, entry_size


def test_an_entry_has_its_scale_behind_the_codes() -> None:
    assert entry_size(64, torch.int8) == 66
    assert entry_size(64, torch.bfloat16) == 64
    row = torch.tensor([[1.0, -0.5, 127.0, 0.0]])
    assert encode(row)[..., :4].tolist() == [[1, 0, 127, 0]]
    assert encode(row).view(torch.uint8)[..., 4:].tolist() == [[0x80, 0x3F]]  # 1 as a bfloat16


@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=9),
    exponent=st.integers(-60, 100),
)
def test_a_value_comes_back_within_a_127th_of_the_largest(values: list[float], exponent: int) -> None:
    row = torch.tensor(values) * 2.0**exponent
    error = (decode(encode(row)) - row).abs().max().item()
    assert error <= max(row.abs().max().item() / 127, 2.0**-113)


@pytest.mark.parametrize("largest", [127.0, 127.49, 127.5, 128.0, 63.75, 3.3e38, 1e-30])
def test_no_code_is_out_of_range(largest: float) -> None:
    row = torch.tensor([largest, -largest, 0.0])
    codes = encode(row)
    assert codes[0] == -codes[1] > 0
    assert codes[2] == 0
    assert decode(codes).allclose(row, rtol=1 / 127)


def test_codes_that_are_encoded_again_are_the_same() -> None:
    codes = encode(torch.randn(7, 3, 10, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(encode(decode(codes)), codes)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_comes_back_as_nan(wrong: float) -> None:
    rows = torch.tensor([[0.5, wrong, 3.0, 0.0], [1.0, 2.0, 3.0, 4.0]])
    decoded = decode(encode(rows))
    assert decoded[0].isnan().all()
    assert decoded[1].allclose(rows[1], atol=4 / 127)


def test_zeros_stay_zeros() -> None:
    assert torch.equal(decode(encode(torch.zeros(2, 6))), torch.zeros(2, 6))
