"""The most likely tokens of a row, in one well-defined order, without sorting the vocabulary.

The order is by logit, highest first, and by token id, lowest first, where logits are equal. This module
knows nothing of probabilities or requests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["top_candidates"]

MIN_NUM_GROUPS = 256
"""With fewer, numpy has too little to do at a time to do it in vectors."""


def top_candidates(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids of the first ``count`` ≥ 1 tokens of ``logits (V,)``, fewer if V is less. No logit is NaN."""
    if count >= len(logits):
        return _in_order(logits, np.arange(len(logits)))
    token_ids = np.flatnonzero(logits >= _lower_bound(logits, count))
    return _in_order(logits[token_ids], token_ids)[:count]


def _lower_bound(logits: NDArray[np.float32], count: int) -> np.float32:
    """A number that at least ``count`` logits reach, and hardly more than that.

    The vocabulary is dealt out to some groups; the ``count``-th highest of their maxima is such a number.
    Where groups would have one member each, it is the ``count``-th highest logit itself.
    """
    group_size = max(1, len(logits) // max(4 * count, MIN_NUM_GROUPS))
    num_groups = len(logits) // group_size
    maxima = logits[: num_groups * group_size].reshape(group_size, num_groups).max(axis=0)
    return np.float32(np.partition(maxima, -count)[-count])


def _in_order(values: NDArray[np.float32], token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """``token_ids`` by value, highest first, then by id, lowest first.

    Value and id make one integer key, so that numpy's vectorised sort of integers does it, which is several
    times as fast as a stable argsort. The bits of float32 numbers are in the order of the numbers, once
    those of negative ones are turned round.
    """
    # Adding zero makes -0.0 and 0.0 the same bits, as they are the same number.
    bits = (values + np.float32(0)).view(np.int32)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = ((~ascending).astype(np.int64) << 32) | token_ids
    keys.sort()
    return keys & 0xFFFFFFFF
