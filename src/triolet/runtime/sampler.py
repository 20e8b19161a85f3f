"""From logits to token ids, each row as its request asks for.

A row's token is a function of its logits, its parameters, its seed and its position: never of the rows
beside it. Where tokens are equally likely, the lowest id comes first. This module knows nothing of models,
caches or scheduling.

Greedy rows are settled on the device. Rows with a temperature or log-probabilities are worked on by numpy,
one by one: on a CPU that is several times as fast as torch, whose operations on short rows cost more to
start than to do, and which wait for a second thread where there is little to share. Logits on another
device are brought over for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.request import Request, TokenLogprobs
from triolet.runtime.drawing import Row, draw, draw_filtered
from triolet.runtime.logprobs import token_logprobs
from triolet.runtime.random import uniforms

__all__ = ["SampledTokens", "sample"]


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """What was sampled for R rows.

    ``errors``: what is wrong with a row, by its index; its token is then 0 and means nothing.
    """

    token_ids: NDArray[np.int64]
    logprobs: tuple[TokenLogprobs | None, ...]
    errors: dict[int, str]


def sample(logits: Tensor, rows: Sequence[PlanRow]) -> SampledTokens:
    """Sample one token after each of ``rows``: ``logits (R, V)`` float32.

    A logit of minus infinity is a probability of zero; a row with NaN, with plus infinity or with no finite
    logit is an error of that row alone.
    """
    token_ids, highest = _argmax(logits)
    is_finite = np.isfinite(highest)
    token_ids[~is_finite] = 0
    errors = {int(i): "the model's logits are not finite" for i in np.flatnonzero(~is_finite)}
    logprobs: list[TokenLogprobs | None] = [None] * len(rows)
    special = [
        i for i, row in enumerate(rows)
        if (row.request.temperature > 0 or row.request.num_logprobs is not None) and is_finite[i]
    ]  # fmt: skip
    if special:
        host_logits = logits.cpu().numpy()
        numbers = _uniforms(rows)
        for i in special:
            request, row = rows[i].request, host_logits[i]
            if request.temperature > 0:
                token_ids[i] = _draw(request, row, highest[i], float(numbers[i]))
            if request.num_logprobs is not None:
                logprobs[i] = token_logprobs(row, highest[i], int(token_ids[i]), request.num_logprobs)
    return SampledTokens(token_ids, tuple(logprobs), errors)


def _draw(request: Request, logits: Row, highest: np.float32, uniform: float) -> int:
    if request.top_k == 0 and request.top_p == 1 and request.min_p == 0:
        return draw(logits, highest, request.temperature, uniform)
    return draw_filtered(
        logits,
        highest,
        request.temperature,
        uniform,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
    )


def _uniforms(rows: Sequence[PlanRow]) -> NDArray[np.float64]:
    """A row's number belongs to its seed and to the position of the token that is sampled."""
    seeds = np.array([row.request.seed for row in rows], dtype=np.int64)
    positions = np.array([row.start + row.num_tokens for row in rows], dtype=np.int64)
    return uniforms(seeds, positions)


def _argmax(logits: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The first of the highest logits of each row, and its value; those of a NaN, if there is one."""
    if logits.device.type == "cpu":
        # numpy's is vectorised within a row, ten times as fast as torch's.
        array = logits.numpy()
        token_ids = array.argmax(axis=-1)
        return token_ids, array[np.arange(len(array)), token_ids]
    best = logits.argmax(dim=-1, keepdim=True)
    return best[:, 0].cpu().numpy(), logits.gather(1, best)[:, 0].cpu().numpy()
