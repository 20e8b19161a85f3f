"""Random numbers that depend on nothing but a seed and a position.

A counter-based generator has no state: the number for (seed, position) is a pure function of the two. That
is what makes a seeded request give the same tokens alone, in any company, after preemption or on another
rank. It is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC 2011).

This module knows nothing of requests, logits or torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["philox4x32", "uniforms"]

NUM_ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW_32_BITS = np.uint64(0xFFFFFFFF)
SHIFT_32 = np.uint64(32)

Words = NDArray[np.uint64]


def uniforms(seeds: NDArray[np.int64], positions: NDArray[np.int64], count: int = 1) -> NDArray[np.float64]:
    """The first ``count`` numbers in [0, 1), multiples of 2⁻⁵³, of each pair; both ``(n,)`` → ``(n, count)``.

    A pair's numbers know nothing of each other.
    """
    num_blocks = -(-count // 2)
    counter = np.zeros((4, len(seeds), num_blocks), dtype=np.uint64)
    counter[:2] = np.stack(_split(positions))[:, :, None]
    counter[2] = np.arange(num_blocks, dtype=np.uint64)
    key = np.repeat(np.stack(_split(seeds)), num_blocks, axis=1)
    words = philox4x32(counter.reshape(4, -1), key)
    bits = (words[0::2] << SHIFT_32 | words[1::2]) >> np.uint64(11)
    numbers: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers.T.reshape(len(seeds), -1)[:, :count]


def philox4x32(counter: Words, key: Words) -> Words:
    """Philox4x32-10 of each column: ``counter (4, n)`` and ``key (2, n)`` hold 32-bit words → ``(4, n)``."""
    multipliers = np.array(MULTIPLIERS, dtype=np.uint64)[:, None]
    steps = np.array(WEYL_STEPS, dtype=np.uint64)[:, None]
    rounds = np.arange(NUM_ROUNDS, dtype=np.uint64)[:, None, None]
    keys = (key + rounds * steps) & LOW_32_BITS
    even, odd = counter[0::2], counter[1::2]
    for round_key in keys:
        products = even * multipliers
        even = (products >> SHIFT_32)[::-1] ^ odd ^ round_key
        odd = (products & LOW_32_BITS)[::-1]
    return np.stack((even[0], odd[0], even[1], odd[1]))


def _split(values: NDArray[np.int64]) -> tuple[Words, Words]:
    """The low and the high 32 bits of each number."""
    bits = values.view(np.uint64)
    return bits & LOW_32_BITS, bits >> SHIFT_32
