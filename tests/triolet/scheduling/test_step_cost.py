from __future__ import annotations

import random

import pytest

from triolet.scheduling.step_cost import USUAL_RATIO, StepCost


def observed(
    fixed: float,
    per_guess: float,
    *,
    per_sequence: float = 2e-4,
    noise: float = 0.0,
    num_steps: int = 300,
    num_sequences: int | None = 4,
    most: int = 8,
) -> StepCost:
    """After steps of ``num_sequences`` (None: 1 to 16) with up to ``most`` guesses."""
    generator = random.Random(3)
    cost = StepCost()
    for _ in range(num_steps):
        sequences, guesses = num_sequences or generator.randint(1, 16), generator.randint(0, most)
        seconds = fixed + per_sequence * sequences + per_guess * guesses
        cost.observe(sequences, guesses, seconds * (1 + noise * generator.random()))
    return cost


def in_tokens(fixed: float, per_guess: float, num_sequences: int, per_sequence: float = 2e-4) -> float:
    return per_guess * num_sequences / (fixed + per_sequence * num_sequences)


@pytest.mark.parametrize(("fixed", "per_guess"), [(6e-3, 6e-4), (1e-3, 1e-3), (2e-2, 4e-4)])
def test_the_cost_of_a_guess_is_found(fixed: float, per_guess: float) -> None:
    expected = in_tokens(fixed, per_guess, 4)
    assert observed(fixed, per_guess).guess_in_tokens(4) == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("num_sequences", [1, 8, 16])
def test_what_a_sequence_adds_is_not_taken_for_what_a_guess_adds(num_sequences: int) -> None:
    cost = observed(4e-3, 1e-4, per_sequence=4e-4, num_sequences=None)
    expected = in_tokens(4e-3, 1e-4, num_sequences, 4e-4)
    assert cost.guess_in_tokens(num_sequences) == pytest.approx(expected, rel=0.25)


def test_noise_does_not_mislead_it_much() -> None:
    assert observed(6e-3, 6e-4, noise=0.2).guess_in_tokens(4) == pytest.approx(
        in_tokens(6e-3, 6e-4, 4), rel=0.5
    )


def test_a_step_that_was_held_up_does_not_mislead_it_much() -> None:
    cost = observed(6e-3, 6e-4)
    cost.observe(4, 0, 1.0)
    for _ in range(100):
        cost.observe(4, 0, 6.8e-3)
        cost.observe(4, 8, 11.6e-3)
    assert cost.guess_in_tokens(4) == pytest.approx(in_tokens(6e-3, 6e-4, 4), rel=0.3)


def test_it_follows_a_change() -> None:
    cost = observed(6e-3, 6e-4)
    for number in range(600):
        cost.observe(4, number % 8, 1e-3 + 2e-4 * 4 + 1e-3 * (number % 8))
    assert cost.guess_in_tokens(4) == pytest.approx(in_tokens(1e-3, 1e-3, 4), rel=0.2)


def test_without_enough_to_go_by_it_says_what_is_usual() -> None:
    usual = 4 / (USUAL_RATIO + 4)
    assert StepCost().guess_in_tokens(4) == usual
    assert observed(1.0, 1.0, most=0).guess_in_tokens(4) == pytest.approx(usual)
    few, many = (observed(1e-3, 1e-3, num_steps=num_steps).guess_in_tokens(4) for num_steps in (3, 300))
    assert usual < few < many


def test_the_estimate_has_bounds() -> None:
    assert observed(1e-2, -1e-4).guess_in_tokens(4) == 0
    assert 0 < observed(1e-9, 1e-3).guess_in_tokens(4) < 100


def test_a_clock_too_coarse_for_a_step_leaves_what_is_usual() -> None:
    cost = StepCost()
    cost.observe(1, 0, 0.0)
    assert cost.guess_in_tokens(8) == 8 / (USUAL_RATIO + 8)
