"""Drawing one token from a row's distribution, whole or cut down by top-k, top-p and min-p.

The filters apply in this order, after the temperature:

1. top-k keeps the k most likely tokens;
2. top-p keeps the fewest most likely tokens whose share of what top-k left is at least p (Holtzman et al.,
   "The Curious Case of Neural Text Degeneration", ICLR 2020);
3. min-p keeps the tokens at least p times as likely as the most likely one (Nguyen et al., "Turning Up the
   Heat: Min-p Sampling for Creative and Coherent LLM Outputs", ICLR 2025).

Each of them keeps a prefix of the tokens in order of likelihood, ties by token id, lowest first. A short
prefix usually settles a row, and one that does not is looked at again with a longer one: the token drawn
is that of a full sort. The draw is by inversion: the token at which the running sum of weights passes
``uniform`` times the total.

A row is a numpy array and is worked on by itself, in the caches of one core: so what is drawn cannot depend
on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.ops import DrawnTokens, DrawSettings, RankedTokens
from triolet_kernels.reference.candidates import top_candidates

__all__ = [
    "draw",
    "draw_filtered",
    "draw_masked",
    "draw_others",
    "draw_rows",
    "draw_tokens",
    "rank",
    "scale_logits",
    "token_weights",
]

FIRST_PREFIX = 64
PREFIX_GROWTH = 8
GROUP_SIZE = 128
MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)
"""Lower temperatures would be zero in float32, or nearly."""

Row = NDArray[np.float32]
"""A row of logits ``(V,)``."""


def draw_tokens(logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None) -> DrawnTokens:
    """:func:`draw_rows` of logits on any device; they are brought over unless all rows are greedy."""
    if rows is not None:
        logits = logits[torch.from_numpy(rows).to(logits.device)]
    if logits.device.type == "cpu" or settings.temperatures.any():
        return draw_rows(logits.cpu().numpy(), settings)
    best = logits.argmax(dim=-1, keepdim=True)
    highest = logits.gather(1, best)[:, 0].cpu().numpy()
    return DrawnTokens(best[:, 0].cpu().numpy(), highest, np.full(len(logits), logits.shape[1]))


def draw_masked(
    logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
) -> DrawnTokens:
    """Forbid in ``rows`` of ``logits``, in place, what ``masks`` do, then :func:`draw_tokens` from them."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    is_forbidden = torch.from_numpy(bits == 0).to(logits.device)
    chosen = torch.from_numpy(rows).to(logits.device)
    before = logits[chosen]
    logits[chosen] = before.masked_fill(is_forbidden, -torch.inf)
    drawn = draw_tokens(logits[chosen], settings)
    is_wrong = (before.isnan() | before.isposinf()).any(dim=1)
    drawn.highest[is_wrong.cpu().numpy()] = np.nan
    return drawn


def rank(logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], count: int) -> RankedTokens:
    """See :meth:`triolet_kernels.ops.Ops.rank`."""
    ranked = RankedTokens(
        token_ids=np.full((len(rows), count), -1),
        weights=np.zeros((len(rows), count), dtype=np.float32),
        totals=np.zeros(len(rows)),
        highest=np.full(len(rows), -np.inf, dtype=np.float32),
    )
    for index, place in enumerate(rows.tolist()):
        row, temperature = logits[place].cpu().numpy(), float(settings.temperatures[index])
        ranked.highest[index] = highest = row.max()
        if not np.isfinite(highest):
            continue
        found = top_candidates(row, count)
        found = found[np.isfinite(row[found])]
        ranked.token_ids[index, : len(found)] = found
        ranked.weights[index, : len(found)] = token_weights(row[found], highest, temperature)
        if settings.top_p[index] < 1 and not settings.top_k[index]:
            ranked.totals[index] = token_weights(row, highest, temperature).sum(dtype=np.float64)
    return ranked


def draw_others(
    logits: Tensor,
    rows: NDArray[np.int64],
    token_ids: NDArray[np.int64],
    temperatures: NDArray[np.float64],
    uniforms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """See :meth:`triolet_kernels.ops.Ops.draw_others`."""
    others = np.full(uniforms.shape, -1)
    for index, place in enumerate(rows.tolist()):
        row = logits[place].cpu().numpy().copy()
        row[token_ids[index]] = -np.inf
        highest, temperature = row.max(), float(temperatures[index])
        for number, uniform in enumerate(uniforms[index].tolist()):
            if not np.isfinite(row.max()) or (
                temperature and not token_weights(row, highest, temperature).any()
            ):
                break
            chosen = draw(row, highest, temperature, uniform) if temperature else int(row.argmax())
            others[index, number] = chosen
            row[chosen] = -np.inf
    return others


def draw_rows(logits: NDArray[np.float32], settings: DrawSettings) -> DrawnTokens:
    """Draw from each row of ``logits (R, V)`` as its settings say."""
    # numpy's argmax is vectorised within a row, ten times as fast as torch's. Of a NaN it gives the place.
    token_ids = logits.argmax(axis=-1)
    highest = logits[np.arange(len(logits)), token_ids]
    num_kept = np.full(len(logits), logits.shape[1])
    for index in np.flatnonzero((settings.temperatures > 0) & np.isfinite(highest)):
        row, temperature = logits[index], float(settings.temperatures[index])
        uniform, filters = float(settings.uniforms[index]), _filters_of(settings, index)
        if filters:
            token_ids[index], num_kept[index] = draw_filtered(
                row, highest[index], temperature, uniform, **filters
            )
        else:
            token_ids[index] = draw(row, highest[index], temperature, uniform)
    return DrawnTokens(token_ids, highest, num_kept)


def scale_logits(logits: Row, highest: np.float32, temperature: float) -> Row:
    """``(logit - highest) / temperature``: logarithms of probabilities up to a term; 0 is the highest."""
    with np.errstate(over="ignore"):
        scaled: Row = logits - highest
        if temperature != 1:
            scaled *= np.float32(1 / max(temperature, MIN_TEMPERATURE))
    return scaled


def token_weights(logits: Row, highest: np.float32, temperature: float) -> Row:
    """``exp((logit - highest) / temperature)``: probabilities up to a factor; that of ``highest`` is 1."""
    scaled = scale_logits(logits, highest, temperature)
    np.exp(scaled, out=scaled)
    return scaled


def draw(logits: Row, highest: np.float32, temperature: float, uniform: float) -> int:
    """Draw from the whole row, in the order of token ids. ``highest`` is the row's highest logit.

    Sums over groups of tokens find the group first, so that only one group's running sum is needed.
    """
    weights = token_weights(logits, highest, temperature)
    sums = np.add.reduceat(weights, np.arange(0, len(weights), GROUP_SIZE))
    running = sums.cumsum(dtype=np.float64)
    target = uniform * running[-1]
    group = _passed_at(running, target)
    inner = weights[group * GROUP_SIZE : (group + 1) * GROUP_SIZE].cumsum(dtype=np.float64)
    return group * GROUP_SIZE + _passed_at(inner, target - (running[group] - sums[group]))


def draw_filtered(
    logits: Row,
    highest: np.float32,
    temperature: float,
    uniform: float,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[int, int]:
    """Draw from what the filters leave; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 are off.

    → the token, and how many tokens are left.
    """
    most = min(top_k or len(logits), len(logits))
    length = top_k or FIRST_PREFIX
    total = None
    if top_p < 1 and not top_k:
        total = token_weights(logits, highest, temperature).sum()
    while True:
        length = min(length, most)
        token_ids = top_candidates(logits, length)
        weights = token_weights(logits[token_ids], highest, temperature)
        running = weights.cumsum(dtype=np.float64)
        mass = running[-1] if total is None else total
        by_top_p = np.searchsorted(running, top_p * mass) + 1 if top_p < 1 else most
        by_min_p = np.count_nonzero(weights >= min_p) if min_p > 0 else length
        if min(by_top_p, by_min_p) < length or length == most:
            break
        length *= PREFIX_GROWTH
    running = running[: max(1, min(by_top_p, by_min_p))]
    return int(token_ids[_passed_at(running, uniform * running[-1])]), len(running)


def _filters_of(settings: DrawSettings, index: np.int64) -> dict[str, Any]:
    """The filters of one row that do something, by name."""
    filters = {
        "top_k": (int(settings.top_k[index]), 0),
        "top_p": (float(settings.top_p[index]), 1.0),
        "min_p": (float(settings.min_p[index]), 0.0),
    }
    return {name: value for name, (value, off) in filters.items() if value != off}


def _passed_at(running: NDArray[np.float64], target: np.float64) -> int:
    """The first index at which ``running`` is above ``target``, which is taken to be below its end."""
    # Two ways to the same sum may differ in the last bit, so the target may be at or past the end.
    inside = min(target, np.nextafter(running[-1], 0.0))
    return int(np.searchsorted(running, inside, side="right"))
