from __future__ import annotations

import numpy as np
import pytest
import torch

from triolet.runtime.random import uniforms
from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings
from triolet_kernels.ops import DrawSettings
from triolet_kernels.reference.device_drawing import draw_on_device, uniforms_on_device
from triolet_kernels.reference.drawing import draw_rows

NUM_ROWS, NUM_TOKENS = 64, 331
CPU = torch.device("cpu")


def test_random_numbers_are_those_of_the_host() -> None:
    generator = np.random.default_rng(1)
    seeds = generator.integers(-(2**63), 2**63, 500, dtype=np.int64)
    positions = generator.integers(0, 2**40, 500, dtype=np.int64)
    expected = uniforms(seeds, positions, 4)
    for number in range(4):
        numbers = torch.full((500,), number)
        drawn = uniforms_on_device(torch.from_numpy(seeds), torch.from_numpy(positions), numbers)
        assert (drawn.numpy() == expected[:, number]).all()


@pytest.mark.parametrize("seed", range(20))
def test_draws_what_the_host_draws(seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.standard_normal((NUM_ROWS, NUM_TOKENS)) * 3).astype(np.float32)
    logits[::3] = logits[::3].round()  # ties
    logits[::5, 7:200] = -np.inf
    seeds, positions = generator.integers(0, 2**63, (2, NUM_ROWS), dtype=np.int64)
    chosen = DrawSettings(
        temperatures=generator.choice([0.0, 0.3, 1.0, 2.0], NUM_ROWS),
        uniforms=np.ascontiguousarray(uniforms(seeds, positions)[:, 0]),
        top_k=generator.choice([0, 0, 1, 5, 400], NUM_ROWS).astype(np.int64),
        top_p=generator.choice([1.0, 1.0, 0.9, 0.2], NUM_ROWS),
        min_p=generator.choice([0.0, 0.0, 0.05, 0.9], NUM_ROWS),
    )
    settings = DeviceDrawSettings.allocate(NUM_ROWS + 3, CPU)
    for name in ("temperatures", "top_k", "top_p", "min_p"):
        getattr(settings, name)[:NUM_ROWS] = torch.from_numpy(getattr(chosen, name))
    settings.seeds[:NUM_ROWS], settings.positions[:NUM_ROWS] = map(torch.from_numpy, (seeds, positions))
    draws = DeviceDraws.allocate(NUM_ROWS + 5, CPU)
    before = logits.copy()
    draw_on_device(torch.from_numpy(logits), settings, draws)
    expected = draw_rows(logits.copy(), chosen)
    assert (draws.highest[:NUM_ROWS].numpy() == expected.highest).all()
    # Sums are taken in another order than numpy's, so a draw at the very edge of a token may differ.
    assert (draws.token_ids[:NUM_ROWS].numpy() == expected.token_ids).mean() > 0.98
    assert (draws.num_kept[:NUM_ROWS].numpy() == expected.num_kept).mean() > 0.98
    assert (logits == before).all()


def test_what_is_not_finite_shows_in_the_highest_logit() -> None:
    logits = torch.zeros(3, 4)
    logits[0, 1], logits[1, 2], logits[2] = torch.nan, torch.inf, -torch.inf
    settings, draws = DeviceDrawSettings.allocate(3, CPU), DeviceDraws.allocate(3, CPU)
    settings.temperatures.fill_(1.0)
    draw_on_device(logits, settings, draws)
    assert not torch.isfinite(draws.highest).any()
