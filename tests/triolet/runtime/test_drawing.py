"""Draws against exact probabilities, a plain-Python oracle, and a full sort."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from triolet.runtime import drawing
from triolet.runtime.drawing import draw, draw_filtered, token_weights
from triolet.runtime.random import uniforms

Probabilities = dict[int, float]

FILTERS: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 10_000},
    {"top_p": 0.8},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 12, "top_p": 0.7},
    {"top_p": 0.9, "min_p": 0.05},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.02},
    {"top_k": 70, "top_p": 0.5},
]


def make_logits(vocab_size: int, scale: float, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=scale, size=vocab_size).astype(np.float32)


def exact_probabilities(
    logits: NDArray[np.float32],
    temperature: float,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Probabilities:
    """By definition, in Python's floats, in order of likelihood."""
    values = logits.tolist()
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    weights = {token: math.exp((values[token] - values[order[0]]) / temperature) for token in order}
    if top_k:
        weights = {token: weights[token] for token in order[:top_k]}
    if top_p < 1:
        total, running, kept = sum(weights.values()), 0.0, {}
        for token, weight in weights.items():
            kept[token] = weight
            running += weight
            if running >= top_p * total:
                break
        weights = kept
    weights = {token: weight for token, weight in weights.items() if weight >= min_p}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def invert(probabilities: Probabilities, uniform: float) -> int:
    running = 0.0
    for token, probability in probabilities.items():
        running += probability
        if running > uniform:
            return token
    return token


def many_uniforms(count: int, seed: int = 0) -> list[float]:
    numbers: list[float] = uniforms(np.full(count, seed), np.arange(count)).tolist()
    return numbers


def assert_fits(drawn: list[int], probabilities: Probabilities) -> None:
    """Pearson's chi-square, tokens that are expected fewer than 10 times taken together; within 5 sigma."""
    counts = np.bincount(drawn)
    assert set(np.flatnonzero(counts).tolist()) <= set(probabilities)
    observed, expected, rare_observed, rare_expected = [], [], 0.0, 0.0
    for token, probability in probabilities.items():
        count = float(counts[token]) if token < len(counts) else 0.0
        if probability * len(drawn) >= 10:
            observed.append(count)
            expected.append(probability * len(drawn))
        else:
            rare_observed += count
            rare_expected += probability * len(drawn)
    if rare_expected:
        observed.append(rare_observed)
        expected.append(rare_expected)
    degrees = len(observed) - 1
    chi_square = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert chi_square - degrees < 5 * math.sqrt(2 * degrees) + 1e-9


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("vocab_size", [1, 7, 128, 1000])
def test_whole_row_has_the_exact_distribution(vocab_size: int, temperature: float) -> None:
    logits = make_logits(vocab_size, 1.5)
    drawn = [draw(logits, logits.max(), temperature, uniform) for uniform in many_uniforms(20_000)]
    assert_fits(drawn, exact_probabilities(logits, temperature))


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filtered_row_has_the_exact_distribution(filters: dict[str, Any]) -> None:
    logits = make_logits(300, 1.5)
    drawn = [draw_filtered(logits, logits.max(), 0.9, u, **filters) for u in many_uniforms(10_000)]
    assert_fits(drawn, exact_probabilities(logits, 0.9, **filters))


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_draws_are_those_of_the_oracle(filters: dict[str, Any], scale: float) -> None:
    for seed in range(10):
        logits = make_logits(700, scale, seed)
        probabilities = exact_probabilities(logits, 1.2, **filters)
        for uniform in many_uniforms(10, seed):
            token = draw_filtered(logits, logits.max(), 1.2, uniform, **filters)
            assert token == invert(probabilities, uniform)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["peaked", "flat", "equal", "ties"])
def test_short_prefixes_draw_what_a_full_sort_draws(
    filters: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = make_logits(20_011, {"peaked": 6.0, "flat": 0.1}.get(kind, 1.0))
    if kind == "equal":
        logits[:] = 0.25
    elif kind == "ties":
        logits = np.round(logits)
    numbers = [0.0, *many_uniforms(20), 1 - 2.0**-53]
    by_prefixes = [draw_filtered(logits, logits.max(), 1.0, u, **filters) for u in numbers]
    monkeypatch.setattr(drawing, "FIRST_PREFIX", len(logits))
    by_full_sort = [draw_filtered(logits, logits.max(), 1.0, u, **filters) for u in numbers]
    assert by_prefixes == by_full_sort


def test_ties_at_the_edge_of_a_filter_are_kept_lowest_id_first() -> None:
    logits = np.array([1.0, 2.0, 1.0, 2.0, 1.0], dtype=np.float32)
    numbers = many_uniforms(200)
    assert {draw_filtered(logits, logits.max(), 1.0, u, top_k=3) for u in numbers} == {0, 1, 3}
    assert {draw_filtered(logits, logits.max(), 1.0, u, top_k=1) for u in numbers} == {1}
    assert {draw_filtered(logits, logits.max(), 1.0, u, top_p=0.01) for u in numbers} == {1}


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_tokens_without_probability_are_never_drawn(uniform: float) -> None:
    logits = np.full(1000, -np.inf, dtype=np.float32)
    logits[[300, 301]] = 5.0, 4.0
    assert draw(logits, logits.max(), 1.0, uniform) in (300, 301)
    for filters in FILTERS:
        assert draw_filtered(logits, logits.max(), 1.0, uniform, **filters) in (300, 301)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_cold_rows_give_the_most_likely_token(temperature: float) -> None:
    logits = make_logits(1000, 3.0)
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        assert draw(logits, logits.max(), temperature, uniform) == logits.argmax()
        assert draw_filtered(logits, logits.max(), temperature, uniform, top_p=0.9) == logits.argmax()


def test_far_apart_logits_do_not_overflow() -> None:
    logits = np.array([-3e38, 3e38, 0.0], dtype=np.float32)
    assert draw(logits, logits.max(), 0.5, 0.9) == 1
    assert token_weights(logits, logits.max(), 0.5).tolist() == [0.0, 1.0, 0.0]


def test_logits_are_left_alone() -> None:
    logits = make_logits(1000, 1.0)
    before = logits.copy()
    draw(logits, logits.max(), 0.5, 0.3)
    draw_filtered(logits, logits.max(), 0.5, 0.3, top_p=0.9)
    assert np.array_equal(logits, before)
