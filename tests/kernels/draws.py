"""Settings of draws, exact distributions in plain Python, and whether a sample fits one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triolet_kernels.ops import DrawSettings

__all__ = ["FILTERS", "assert_fits", "exact_probabilities", "invert", "make_settings", "many_uniforms"]

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
    numbers: list[float] = np.random.default_rng(seed).random(count).tolist()
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


def make_settings(rows: Sequence[Mapping[str, float]]) -> DrawSettings:
    """``temperature``, ``uniform``, ``top_k``, ``top_p`` and ``min_p`` of rows; what is not given is off."""
    return DrawSettings(
        temperatures=np.array([row.get("temperature", 0.0) for row in rows]),
        uniforms=np.array([row.get("uniform", 0.0) for row in rows]),
        top_k=np.array([row.get("top_k", 0) for row in rows], dtype=np.int64),
        top_p=np.array([row.get("top_p", 1.0) for row in rows]),
        min_p=np.array([row.get("min_p", 0.0) for row in rows]),
    )
