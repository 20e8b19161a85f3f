"""Sizes of the models whose kernels are measured."""

from __future__ import annotations

import pytest
from bench.kernel_shapes import MODELS, LinearShape


def test_bytes_are_those_of_the_format() -> None:
    assert LinearShape("any", 64, 32, "Q4_1", 3).num_bytes(2) == 3 * 64 * 32 // 32 * 20
    assert LinearShape("any", 512, 1, "Q4_K", 1).num_bytes(2) == 2 * 144
    assert LinearShape("any", 64, 32, "dense", 3).num_bytes(4) == 3 * 64 * 32 * 4


@pytest.mark.parametrize(
    ("name", "millions"),
    [("smollm2-135m-q4_1", 134.5), ("smollm2-135m", 134.5), ("gemma-3-270m-q4_k_m", 268)],
)
def test_models_have_as_many_weights_as_they_are_named_for(name: str, millions: float) -> None:
    num_values = sum(shape.num_values for shape in MODELS[name].linears)
    assert num_values / 1e6 == pytest.approx(millions, rel=0.01)
