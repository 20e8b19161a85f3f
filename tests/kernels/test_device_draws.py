"""Tensors for drawing on a device: what they hold at first."""

from __future__ import annotations

import pytest
import torch

from triolet_kernels.device_draws import (
    DeviceAdjustments,
    DeviceDraws,
    DeviceDrawSettings,
    DeviceLogprobs,
    mass_bits,
    num_mask_words,
)

CPU = torch.device("cpu")


def test_settings_are_greedy_at_first() -> None:
    settings = DeviceDrawSettings.allocate(3, CPU)
    assert settings.temperatures.tolist() == [0.0] * 3
    assert settings.top_k.tolist() == [0] * 3
    assert settings.top_p.tolist() == [1.0] * 3
    assert settings.min_p.tolist() == [0.0] * 3
    assert settings.numbers.dtype == settings.seeds.dtype == settings.positions.dtype == torch.int64


def test_draws_have_room_for_every_row() -> None:
    draws = DeviceDraws.allocate(4, CPU)
    assert draws.token_ids.shape == draws.highest.shape == draws.num_kept.shape == draws.masses.shape == (4,)
    assert draws.scratch.candidates.is_contiguous()


def test_no_log_probabilities_are_asked_for_at_first() -> None:
    logprobs = DeviceLogprobs.allocate(2, 5, CPU)
    assert logprobs.temperatures.tolist() == [0.0, 0.0]
    assert logprobs.token_ids.shape == logprobs.logprobs.shape == (2, 6)


def test_there_are_no_adjustments_at_first() -> None:
    adjustments = DeviceAdjustments.allocate(2, 33, CPU, num_histories=3, num_masks=1, num_biases=4)
    assert adjustments.bias_starts.equal(adjustments.bias_ends)
    assert adjustments.history_rows.tolist() == adjustments.mask_rows.tolist() == [-1, -1]
    assert adjustments.repetition.tolist() == [1.0, 1.0]
    assert adjustments.prompt_bits.shape == (3, 2)
    assert adjustments.output_counts.shape == (3, 33)
    assert adjustments.masks.shape == (1, 2)


@pytest.mark.parametrize("size", [1, 2, 3, 1024, 1025, 128_256, 262_144, 262_145])
def test_the_weights_of_all_tokens_together_fit_into_64_bits(size: int) -> None:
    assert size << mass_bits(size) < 2**63
    assert size == 1 or size << mass_bits(size) > 2**61


def test_a_mask_has_a_bit_for_each_token() -> None:
    assert [num_mask_words(size) for size in (1, 32, 33)] == [1, 1, 2]
