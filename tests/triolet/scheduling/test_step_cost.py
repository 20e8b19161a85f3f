from __future__ import annotations

import random

import pytest

from triolet.scheduling.step_cost import MAX_RATIO, MIN_RATIO, USUAL_RATIO, StepCost


def observed(
    fixed: float, per_token: float, *, noise: float = 0.0, num_steps: int = 300, most: int = 8
) -> StepCost:
    generator = random.Random(3)
    cost = StepCost()
    for _ in range(num_steps):
        num_tokens = generator.randint(1, most)
        seconds = (fixed + per_token * num_tokens) * (1 + noise * generator.random())
        cost.observe(num_tokens, seconds)
    return cost


@pytest.mark.parametrize(("fixed", "per_token"), [(6e-3, 6e-4), (1e-3, 1e-3), (2e-2, 4e-4)])
def test_the_fixed_part_is_found(fixed: float, per_token: float) -> None:
    assert observed(fixed, per_token).fixed_in_tokens == pytest.approx(fixed / per_token, rel=0.2)


def test_noise_does_not_mislead_it_much() -> None:
    assert observed(6e-3, 6e-4, noise=0.2).fixed_in_tokens == pytest.approx(10, rel=0.5)


def test_a_step_that_was_held_up_does_not_mislead_it_much() -> None:
    cost = observed(6e-3, 6e-4)
    cost.observe(1, 1.0)
    for _ in range(100):
        cost.observe(1, 6.6e-3)
        cost.observe(8, 10.8e-3)
    assert cost.fixed_in_tokens == pytest.approx(10, rel=0.3)


def test_it_follows_a_change() -> None:
    cost = observed(6e-3, 6e-4)
    for number in range(600):
        cost.observe(1 + number % 8, 1e-3 + 1e-3 * (1 + number % 8))
    assert cost.fixed_in_tokens == pytest.approx(1, rel=0.2)


def test_without_enough_to_go_by_it_says_what_is_usual() -> None:
    assert StepCost().fixed_in_tokens == USUAL_RATIO
    assert observed(1.0, 1.0, most=1).fixed_in_tokens == pytest.approx(USUAL_RATIO)
    few, many = (observed(1e-3, 1e-3, num_steps=num_steps).fixed_in_tokens for num_steps in (3, 300))
    assert USUAL_RATIO > few > many > 1


def test_the_estimate_has_bounds() -> None:
    assert observed(-1e-3, 1e-3).fixed_in_tokens == MIN_RATIO
    assert observed(1e-2, -1e-4).fixed_in_tokens == MAX_RATIO
