"""Log-probabilities of the sampled and of the most likely tokens, from the model's raw distribution.

Raw means before temperature and filters. This module knows nothing of requests, plans or torch.
"""

from __future__ import annotations

import numpy as np

from triolet.request import TokenLogprobs
from triolet.runtime.candidates import top_candidates
from triolet.runtime.drawing import Row, token_weights

__all__ = ["token_logprobs"]


def token_logprobs(logits: Row, highest: np.float32, sampled: int, num_top: int) -> TokenLogprobs:
    """Of ``sampled`` and of the ``num_top`` most likely tokens of a row whose highest logit is ``highest``.

    Values are rounded to float32. Tokens as likely as each other rank by id, lowest first.
    """
    normalizer = float(highest) + np.log(token_weights(logits, highest, 1.0).sum(dtype=np.float64))
    top = top_candidates(logits, num_top) if num_top else np.empty(0, dtype=np.int64)
    token_ids = np.concatenate(([sampled], top))
    values = (logits[token_ids] - normalizer).astype(np.float32)
    num_above = np.count_nonzero(logits > logits[sampled])
    num_equal_before = np.count_nonzero(logits[:sampled] == logits[sampled])
    return TokenLogprobs(
        token_ids=tuple(token_ids.tolist()),
        logprobs=tuple(values.tolist()),
        rank=int(num_above + num_equal_before) + 1,
    )
