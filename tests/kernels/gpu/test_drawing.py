"""Draws on a GPU, beside the reference and beside exact distributions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.kernels.draws import exact_probabilities, many_uniforms
from tests.kernels.gpu.interpreted import interpreted_ops
from torch import Tensor

from triolet.runtime.random import uniforms
from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings
from triolet_kernels.ops import DrawnTokens, DrawSettings
from triolet_kernels.reference import drawing as reference

CASES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 1e-45},
    {"top_k": 1},
    {"top_k": 40, "top_p": 0.8},
    {"top_k": 10_000},
    {"top_k": 1500},
    {"top_p": 0.9},
    {"top_p": 0.9999, "temperature": 4.0},
    {"min_p": 0.05},
    {"min_p": 1e-9, "temperature": 3.0},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.02, "temperature": 0.7},
]


def settings_of(cases: list[dict[str, Any]], numbers: list[float]) -> DrawSettings:
    def column(name: str, default: float, dtype: type) -> NDArray[Any]:
        return np.array([case.get(name, default) for case in cases], dtype=dtype)

    return DrawSettings(
        temperatures=column("temperature", 1.0, np.float64),
        uniforms=np.array(numbers),
        top_k=column("top_k", 0, np.int64),
        top_p=column("top_p", 1.0, np.float64),
        min_p=column("min_p", 0.0, np.float64),
    )


def random_logits(num_rows: int, size: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))


def assert_same(got: DrawnTokens, expected: DrawnTokens) -> None:
    for name in ("token_ids", "highest", "num_kept"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), name)


@pytest.mark.parametrize("size", [1, 31, 2500])
def test_what_is_drawn_is_what_the_reference_draws(size: int) -> None:
    logits = random_logits(len(CASES), size, seed=size)
    settings = settings_of(CASES, many_uniforms(len(CASES), seed=size))
    assert_same(interpreted_ops().draw(logits, settings), reference.draw_tokens(logits, settings))


def test_equal_logits_are_in_the_order_of_their_ids() -> None:
    logits = (random_logits(len(CASES), 600) / 6).round() * 2
    logits[:, ::2] += 0.0  # rounding leaves zeros of both signs
    settings = settings_of(CASES, many_uniforms(len(CASES), seed=3))
    assert_same(interpreted_ops().draw(logits, settings), reference.draw_tokens(logits, settings))


def test_more_equal_logits_than_there_is_room_for_candidates() -> None:
    cases: list[dict[str, Any]] = [{"top_k": 7}, {"top_p": 0.5}, {"min_p": 0.5}]
    logits, settings = torch.zeros(3, 2200), settings_of(cases, [0.5, 0.999, 0.25])
    drawn = interpreted_ops().draw(logits, settings)
    assert drawn.num_kept.tolist() == [7, 1100, 2200]
    assert drawn.token_ids.tolist() == [3, 1098, 550]


def test_the_ends_of_the_random_numbers_draw_what_can_be_drawn() -> None:
    logits = torch.full((len(CASES), 40), -torch.inf)
    logits[:, 7], logits[:, 30] = 1.0, 0.5
    drawn = interpreted_ops().draw(logits, settings_of(CASES, [0.0, 1 - 2.0**-53] * (len(CASES) // 2)))
    assert set(drawn.token_ids.tolist()) <= {7, 30}


def test_logits_that_are_not_finite_are_flagged_in_their_row_alone() -> None:
    logits = random_logits(5, 50)
    expected = logits[4].max()
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 9] = -torch.nan
    drawn = interpreted_ops().draw(logits, settings_of([{"top_k": 3}] * 5, [0.3] * 5))
    assert np.isfinite(drawn.highest).tolist() == [False, False, False, False, True]
    assert drawn.highest[4] == expected
    assert ((drawn.token_ids >= 0) & (drawn.token_ids < 50)).all()


@pytest.mark.parametrize("filters", [{}, {"top_k": 5, "top_p": 0.9}])
def test_evenly_spread_random_numbers_draw_tokens_as_often_as_they_are_likely(
    filters: dict[str, Any],
) -> None:
    row, count = random_logits(1, 9, seed=5)[0], 10
    numbers = [(index + 0.5) / count for index in range(count)]
    drawn = interpreted_ops().draw(row.repeat(count, 1), settings_of([filters] * count, numbers))
    counts = np.bincount(drawn.token_ids, minlength=9)
    probabilities = exact_probabilities(row.numpy(), 1.0, **filters)
    for token_id, number in enumerate(counts.tolist()):
        assert abs(number - count * probabilities.get(token_id, 0.0)) <= 1


def test_rows_are_chosen_and_masks_forbid_in_place() -> None:
    logits, rows = random_logits(4, 100), np.array([3, 1])
    masks = np.zeros((2, 4), dtype=np.int32)
    masks[0, 2], masks[1, 0] = -(2**31), 0b1010
    settings = settings_of([{"top_p": 0.9}, {}], [0.7, 0.9])
    expected, before = logits.clone(), logits.clone()
    same = reference.draw_masked(expected, settings, rows, masks)
    assert_same(interpreted_ops().draw_masked(logits, settings, rows, masks), same)
    assert torch.equal(logits, expected)
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


def test_a_mask_hides_no_number_that_is_wrong() -> None:
    logits, masks = random_logits(2, 40), np.full((2, 2), 1, dtype=np.int32)
    logits[0, 33], logits[1, 34] = torch.nan, torch.inf
    drawn = interpreted_ops().draw_masked(logits, settings_of([{}] * 2, [0.5] * 2), np.arange(2), masks)
    assert not np.isfinite(drawn.highest).any()


def seeded(settings: DrawSettings, seeds: list[int], positions: list[int]) -> DeviceDrawSettings:
    return DeviceDrawSettings(
        **{
            name: torch.from_numpy(getattr(settings, name))
            for name in ("temperatures", "top_k", "top_p", "min_p")
        },
        seeds=torch.tensor(seeds),
        positions=torch.tensor(positions),
        numbers=torch.arange(len(seeds)) % 5,
    )


def test_random_numbers_are_those_of_the_host() -> None:
    seeds = [0, 1, -1, 2**63 - 1, -(2**63), 0x123456789ABCDEF]
    positions = [0, 5, 2**31, 2**40 + 3, 7, 1]
    settings = settings_of([{"temperature": 9.0}] * 6, [0.0] * 6)
    each = uniforms(np.array(seeds), np.array(positions), 5)
    given = replace(settings, uniforms=each[np.arange(6), np.arange(6) % 5])
    logits, draws = random_logits(6, 1100), DeviceDraws.allocate(8, torch.device("cpu"))
    interpreted_ops().draw_on_device(logits, seeded(settings, seeds, positions), draws)
    assert draws.token_ids[:6].tolist() == reference.draw_tokens(logits, given).token_ids.tolist()


def test_more_room_than_rows_is_left_as_it_is() -> None:
    draws = DeviceDraws.allocate(3, torch.device("cpu"))
    draws.token_ids.fill_(-5)
    interpreted_ops().draw_on_device(
        random_logits(2, 9), DeviceDrawSettings.allocate(3, torch.device("cpu")), draws
    )
    assert draws.token_ids[2] == -5
    assert (draws.token_ids[:2] >= 0).all()


def test_a_row_is_drawn_from_alike_in_any_company() -> None:
    logits = random_logits(4, 1500)
    settings = settings_of([{"top_p": 0.95}] * 4, many_uniforms(4))
    together = interpreted_ops().draw(logits, settings)
    alone = interpreted_ops().draw(logits, replace_rows(settings, [2]), np.array([2]))
    assert together.token_ids[2] == alone.token_ids[0]
    assert together.num_kept[2] == alone.num_kept[0]


def replace_rows(settings: DrawSettings, rows: list[int]) -> DrawSettings:
    names = ("temperatures", "uniforms", "top_k", "top_p", "min_p")
    return DrawSettings(**{name: getattr(settings, name)[rows] for name in names})
