"""The generator against its authors' test vectors, and the properties that sampling needs of it."""

from __future__ import annotations

import numpy as np
import pytest

from triolet.runtime.random import philox4x32, uniforms

VECTORS = [
    ("00000000 00000000 00000000 00000000 00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
"""Counter and key, then the output: ``philox4x32 10`` in ``kat_vectors`` of Random123."""


def words(text: str) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint64)


@pytest.mark.parametrize(("given", "expected"), VECTORS)
def test_philox_gives_the_published_numbers(given: str, expected: str) -> None:
    counter_and_key = words(given)
    assert np.array_equal(philox4x32(counter_and_key[:4], counter_and_key[4:]), words(expected))


def test_philox_columns_are_independent() -> None:
    columns = np.concatenate([words(given) for given, _ in VECTORS], axis=1)
    expected = np.concatenate([words(output) for _, output in VECTORS], axis=1)
    assert np.array_equal(philox4x32(columns[:4], columns[4:]), expected)


@pytest.mark.parametrize("which", [0, 1, 2, 5])
def test_uniforms_are_the_high_53_bits_of_two_words(which: int) -> None:
    seeds, positions = np.array([-2, 3]), np.array([5, 2**40 + 7])
    numbers = uniforms(seeds, positions, 6)[:, which]
    for seed, position, number in zip(seeds.tolist(), positions.tolist(), numbers, strict=True):
        counter = np.array([[position % 2**32], [position >> 32], [which // 2], [0]], dtype=np.uint64)
        key = np.array([[seed % 2**32], [(seed % 2**64) >> 32]], dtype=np.uint64)
        output = philox4x32(counter, key)[:, 0].tolist()[2 * (which % 2) :]
        assert number == ((output[0] << 32 | output[1]) >> 11) * 2.0**-53


@pytest.mark.parametrize("varied", ["seeds", "positions", "numbers"])
def test_uniforms_are_uniform_along_each_argument(varied: str) -> None:
    count, num_bins = 100_000, 100
    steps, fixed = np.arange(count), np.full(count, 11)
    numbers = {
        "seeds": lambda: uniforms(steps, fixed)[:, 0],
        "positions": lambda: uniforms(fixed, steps)[:, 0],
        "numbers": lambda: uniforms(fixed[:1], fixed[:1], count)[0],
    }[varied]()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    observed = np.bincount((numbers * num_bins).astype(int), minlength=num_bins)
    chi_square = ((observed - count / num_bins) ** 2 / (count / num_bins)).sum()
    assert abs(chi_square - (num_bins - 1)) < 5 * (2 * (num_bins - 1)) ** 0.5
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / count**0.5
