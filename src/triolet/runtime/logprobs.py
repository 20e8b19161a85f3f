"""Log-probabilities of a token and of the most likely ones.

Raw ones are of the model's own distribution, before adjustments, temperature and filters. Processed ones are
of the distribution that the token was drawn from: after all three. Greedy rows have no temperature and no
filters. This module knows nothing of requests, plans or torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triolet.request import TokenLogprobs
from triolet_kernels.reference.candidates import top_candidates
from triolet_kernels.reference.drawing import Row, scale_logits, token_weights

__all__ = ["processed_logprobs", "token_logprobs"]


def token_logprobs(logits: Row, highest: np.float32, sampled: int, num_top: int) -> TokenLogprobs:
    """Of ``sampled`` and of the ``num_top`` most likely tokens of a row whose highest logit is ``highest``.

    Values are rounded to float32. Tokens as likely as each other rank by id, lowest first.
    """
    normalizer = float(highest) + np.log(token_weights(logits, highest, 1.0).sum(dtype=np.float64))
    top = top_candidates(logits, num_top) if num_top else np.empty(0, dtype=np.int64)
    num_above = np.count_nonzero(logits > logits[sampled])
    num_equal_before = np.count_nonzero(logits[:sampled] == logits[sampled])
    return _pack(logits, normalizer, sampled, top, int(num_above + num_equal_before) + 1)


def processed_logprobs(
    logits: Row, highest: np.float32, sampled: int, num_top: int, *, temperature: float, num_kept: int
) -> TokenLogprobs:
    """The same after a ``temperature``, of the ``num_kept`` most likely tokens that filters have left.

    ``num_kept`` V is no filter. Tokens of no probability are left out, so there may be fewer than asked for.
    """
    scaled = scale_logits(logits, highest, temperature)
    if num_kept < len(logits):
        kept = top_candidates(logits, num_kept)
        normalizer = np.log(np.exp(scaled[kept]).sum(dtype=np.float64))
        rank = int(np.flatnonzero(kept == sampled)[0]) + 1
        return _pack(scaled, normalizer, sampled, kept[:num_top], rank)
    entry = token_logprobs(scaled, np.float32(0), sampled, num_top)
    num_possible = sum(value > -np.inf for value in entry.logprobs)
    return TokenLogprobs(entry.token_ids[:num_possible], entry.logprobs[:num_possible], entry.rank)


def _pack(logits: Row, normalizer: float, sampled: int, top: NDArray[np.int64], rank: int) -> TokenLogprobs:
    token_ids = np.concatenate(([sampled], top))
    values = (logits[token_ids] - normalizer).astype(np.float32)
    return TokenLogprobs(tuple(token_ids.tolist()), tuple(values.tolist()), rank)
