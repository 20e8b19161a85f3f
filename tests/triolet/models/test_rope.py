"""Rotary tables against the formulas in float64, and the scalings against ``transformers``."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from triolet.models.config import RopeConfig
from triolet.models.rope import cos_sin_table, inverse_frequencies

CPU = torch.device("cpu")


def test_table_holds_cosines_then_sines() -> None:
    table = cos_sin_table(RopeConfig(theta=100.0, dim=6), 50, CPU)
    assert table.dtype == torch.float32
    for position in (0, 1, 49):
        for index in range(3):
            angle = position * 100.0 ** (-2 * index / 6)
            assert table[position, index].item() == pytest.approx(math.cos(angle), abs=1e-5)
            assert table[position, 3 + index].item() == pytest.approx(math.sin(angle), abs=1e-5)


def test_linear_scaling_stretches_positions() -> None:
    plain = RopeConfig(theta=1e4, dim=8)
    stretched = RopeConfig(theta=1e4, dim=8, scaling_kind="linear", factor=4.0)
    torch.testing.assert_close(cos_sin_table(stretched, 41, CPU)[40], cos_sin_table(plain, 11, CPU)[10])


def test_llama3_scaling_is_that_of_transformers() -> None:
    parameters: dict[str, Any] = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=131072, rope_parameters=parameters
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    rope = RopeConfig(
        theta=5e5,
        dim=64,
        scaling_kind="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    torch.testing.assert_close(inverse_frequencies(rope), expected, rtol=1e-6, atol=0)


def test_frequency_factors_divide() -> None:
    plain = inverse_frequencies(RopeConfig(theta=1e4, dim=4))
    divided = inverse_frequencies(RopeConfig(theta=1e4, dim=4, frequency_factors=(1.0, 8.0)))
    torch.testing.assert_close(divided, plain / torch.tensor([1.0, 8.0]))
