"""Log-probabilities on a GPU, beside those that the runtime makes with numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_ops
from torch import Tensor

from triolet.request import TokenLogprobs
from triolet.runtime.logprobs import processed_logprobs, token_logprobs
from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings, DeviceLogprobs

CPU = torch.device("cpu")
MAX_TOP = 6


def entry_of(logprobs: DeviceLogprobs, row: int) -> TokenLogprobs:
    token_ids, values = logprobs.token_ids[row].tolist(), logprobs.logprobs[row].tolist()
    number = sum(token_id >= 0 for token_id in token_ids)
    assert values[number:] == [-np.inf] * (len(values) - number)
    return TokenLogprobs(tuple(token_ids[:number]), tuple(values[:number]), int(logprobs.ranks[row]))


def assert_close(got: TokenLogprobs, expected: TokenLogprobs) -> None:
    assert got.token_ids == expected.token_ids
    assert got.rank == expected.rank
    np.testing.assert_allclose(got.logprobs, expected.logprobs, rtol=2e-6, atol=2e-6)


def drawn_from(logits: Tensor, settings: DeviceDrawSettings) -> DeviceDraws:
    draws = DeviceDraws.allocate(len(logits), CPU)
    settings.seeds.copy_(torch.arange(len(logits)))
    interpreted_ops().draw_on_device(logits, settings, draws)
    return draws


@pytest.mark.parametrize("size", [3, 1500])
def test_raw_ones_are_of_the_model_s_distribution(size: int) -> None:
    logits = 2 * torch.randn(4, size)
    logits[1, 2] = -torch.inf
    settings, logprobs = DeviceDrawSettings.allocate(4, CPU), DeviceLogprobs.allocate(4, MAX_TOP, CPU)
    settings.temperatures.copy_(torch.tensor([0.0, 0.8, 1.0, 2.0]))
    draws = drawn_from(logits, settings)
    logprobs.temperatures.copy_(torch.tensor([1.0, 1.0, 0.0, 1.0]))
    logprobs.num_top.copy_(torch.tensor([MAX_TOP, 3, 2, 0]))
    logprobs.ranks.fill_(-9)
    interpreted_ops().logprobs_on_device(logits, draws, logprobs)
    for row in (0, 1, 3):
        values = logits[row].numpy()
        token_id, num_top = int(draws.token_ids[row]), min(int(logprobs.num_top[row]), size)
        assert_close(entry_of(logprobs, row), token_logprobs(values, values.max(), token_id, num_top))
    assert logprobs.ranks[2] == -9


def test_processed_ones_are_of_what_was_drawn_from() -> None:
    logits = 2 * torch.randn(4, 1200)
    settings, logprobs = DeviceDrawSettings.allocate(4, CPU), DeviceLogprobs.allocate(4, MAX_TOP, CPU)
    settings.temperatures.copy_(torch.tensor([0.0, 0.5, 1.0, 2.0]))
    settings.top_k.copy_(torch.tensor([0, 4, 0, 0]))
    settings.top_p[2] = 0.9
    draws = drawn_from(logits, settings)
    temperatures = [1.0, 0.5, 1.0, 2.0]
    logprobs.temperatures.copy_(torch.tensor(temperatures))
    logprobs.num_top.fill_(MAX_TOP)
    interpreted_ops().logprobs_on_device(logits, draws, logprobs, is_processed=True)
    for row, temperature in enumerate(temperatures):
        values, num_kept = logits[row].numpy(), int(draws.num_kept[row])
        expected = processed_logprobs(
            values,
            values.max(),
            int(draws.token_ids[row]),
            MAX_TOP,
            temperature=temperature,
            num_kept=num_kept,
        )
        assert_close(entry_of(logprobs, row), expected)


def test_equal_logits_rank_by_id_even_where_there_is_no_room_for_all() -> None:
    logits, logprobs = torch.zeros(1, 2100), DeviceLogprobs.allocate(1, MAX_TOP, CPU)
    draws = drawn_from(logits, DeviceDrawSettings.allocate(1, CPU))
    logprobs.temperatures.fill_(1.0)
    logprobs.num_top.fill_(4)
    interpreted_ops().logprobs_on_device(logits, draws, logprobs)
    assert entry_of(logprobs, 0).token_ids == (0, 0, 1, 2, 3)


def test_tokens_of_no_probability_are_left_out_of_processed_ones_alone() -> None:
    logits = torch.full((1, 40), -torch.inf)
    logits[0, 5] = logits[0, 9] = 1.0
    draws = drawn_from(logits, DeviceDrawSettings.allocate(1, CPU))
    logprobs = DeviceLogprobs.allocate(1, MAX_TOP, CPU)
    logprobs.temperatures.fill_(1.0)
    logprobs.num_top.fill_(4)
    for is_processed, expected in ((True, (5, 5, 9)), (False, (5, 5, 9, 0, 1))):
        interpreted_ops().logprobs_on_device(logits, draws, logprobs, is_processed=is_processed)
        assert entry_of(logprobs, 0).token_ids == expected
