"""Draws against exact probabilities, a plain-Python oracle, and a full sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.kernels.draws import FILTERS, assert_fits, exact_probabilities, invert, many_uniforms

from triolet_kernels.reference import drawing
from triolet_kernels.reference.drawing import draw, draw_filtered, token_weights


def draw_one(*args: Any, **filters: Any) -> int:
    """The token alone, without how many were left."""
    return draw_filtered(*args, **filters)[0]


def make_logits(vocab_size: int, scale: float, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=scale, size=vocab_size).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("vocab_size", [1, 7, 128, 1000])
def test_whole_row_has_the_exact_distribution(vocab_size: int, temperature: float) -> None:
    logits = make_logits(vocab_size, 1.5)
    drawn = [draw(logits, logits.max(), temperature, uniform) for uniform in many_uniforms(20_000)]
    assert_fits(drawn, exact_probabilities(logits, temperature))


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_filtered_row_has_the_exact_distribution(filters: dict[str, Any]) -> None:
    logits = make_logits(300, 1.5)
    drawn = [draw_one(logits, logits.max(), 0.9, u, **filters) for u in many_uniforms(10_000)]
    assert_fits(drawn, exact_probabilities(logits, 0.9, **filters))


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_draws_are_those_of_the_oracle(filters: dict[str, Any], scale: float) -> None:
    for seed in range(10):
        logits = make_logits(700, scale, seed)
        probabilities = exact_probabilities(logits, 1.2, **filters)
        for uniform in many_uniforms(10, seed):
            token = draw_one(logits, logits.max(), 1.2, uniform, **filters)
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
    by_prefixes = [draw_one(logits, logits.max(), 1.0, u, **filters) for u in numbers]
    monkeypatch.setattr(drawing, "FIRST_PREFIX", len(logits))
    by_full_sort = [draw_one(logits, logits.max(), 1.0, u, **filters) for u in numbers]
    assert by_prefixes == by_full_sort


def test_ties_at_the_edge_of_a_filter_are_kept_lowest_id_first() -> None:
    logits = np.array([1.0, 2.0, 1.0, 2.0, 1.0], dtype=np.float32)
    numbers = many_uniforms(200)
    assert {draw_one(logits, logits.max(), 1.0, u, top_k=3) for u in numbers} == {0, 1, 3}
    assert {draw_one(logits, logits.max(), 1.0, u, top_k=1) for u in numbers} == {1}
    assert {draw_one(logits, logits.max(), 1.0, u, top_p=0.01) for u in numbers} == {1}


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_tokens_without_probability_are_never_drawn(uniform: float) -> None:
    logits = np.full(1000, -np.inf, dtype=np.float32)
    logits[[300, 301]] = 5.0, 4.0
    assert draw(logits, logits.max(), 1.0, uniform) in (300, 301)
    for filters in FILTERS:
        assert draw_one(logits, logits.max(), 1.0, uniform, **filters) in (300, 301)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 5e-324])
def test_cold_rows_give_the_most_likely_token(temperature: float) -> None:
    logits = make_logits(1000, 3.0)
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        assert draw(logits, logits.max(), temperature, uniform) == logits.argmax()
        assert draw_one(logits, logits.max(), temperature, uniform, top_p=0.9) == logits.argmax()


def test_far_apart_logits_do_not_overflow() -> None:
    logits = np.array([-3e38, 3e38, 0.0], dtype=np.float32)
    assert draw(logits, logits.max(), 0.5, 0.9) == 1
    assert token_weights(logits, logits.max(), 0.5).tolist() == [0.0, 1.0, 0.0]


def test_logits_are_left_alone() -> None:
    logits = make_logits(1000, 1.0)
    before = logits.copy()
    draw(logits, logits.max(), 0.5, 0.3)
    draw_one(logits, logits.max(), 0.5, 0.3, top_p=0.9)
    assert np.array_equal(logits, before)
