"""Seeds: one for each request that names none, and one for each continuation of a request.

This module knows nothing of requests or of how random numbers are drawn.
"""

from __future__ import annotations

import secrets
from itertools import count

__all__ = ["SeedSource", "continuation_seed"]

NUM_SEEDS = 2**53  # what JSON readers with floating-point numbers can hold exactly


class SeedSource:
    """Seeds for requests that name none: a reproducible sequence from a seed, or unpredictable ones."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._numbers = count()

    def next(self) -> int:
        if self._seed is None:
            return secrets.randbelow(NUM_SEEDS)
        # A Weyl sequence: each step adds an odd constant, so no seed repeats within 2^53 requests.
        return (self._seed + next(self._numbers) * 0x13C6EF372FE94B) % NUM_SEEDS


def continuation_seed(seed: int, index: int) -> int:
    """The seed of a request's continuation ``index``: the seed plus the index, as a signed 64-bit number."""
    return (seed + index + 2**63) % 2**64 - 2**63
