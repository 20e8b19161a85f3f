"""A draw from the most likely tokens that are allowed, by asking of as few tokens as will do.

What top-k, top-p and min-p keep of the allowed tokens, and where in it a random number falls, depends on all
of them. But a token that nobody has asked about weighs nothing if it is forbidden, and is known by its weight
if it is allowed. So after some tokens the sum that is drawn from lies between two bounds. Once the draw is
the same at both, it is settled: the token is the one that a mask gives.

Bounds are wider than any rounding, so that it does not matter in which order somebody else sums up. This
module knows neither logits nor grammars.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_ASKED", "Ask", "RankedDraw", "floats"]

Ask = Callable[[Sequence[int]], Sequence[bool]]
"""Tokens → which of them are allowed."""

Floats: TypeAlias = "memoryview[float]"
"""Numbers of an array, which come as Python's own."""

MAX_ASKED = 128
ENDS = (2, 6, 16, 32, 48, 64, 96, MAX_ASKED)
"""After how many tokens it is looked whether the draw is settled."""
FEW = 6
"""If the draw could not be settled in any case, only so many tokens are asked about."""
LAST_START = 16
"""If none of so many tokens is allowed, the others are not asked about."""

BELOW, ABOVE = 1 - 1e-4, 1 + 1e-4


@dataclass(slots=True)
class _Allowed:
    """The allowed ones of the tokens asked about, in order, with running sums of their weights."""

    token_ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    def add(self, token_ids: Sequence[int], weights: Sequence[float], are_allowed: Sequence[bool]) -> None:
        mass = self.sums[-1] if self.sums else 0.0
        for token_id, weight, is_allowed in zip(token_ids, weights, are_allowed, strict=True):
            if is_allowed:
                mass += weight
                self.token_ids.append(token_id)
                self.weights.append(weight)
                self.sums.append(mass)


@dataclass(slots=True)
class RankedDraw:
    """How to draw from the most likely tokens of one row, whose ids and weights are in order.

    Where they are all there are, zeros follow the ``weights`` of ``token_ids``. ``sums``: of the weights
    before each of them, and of all of them. ``total``: the weight of all tokens of the row; it is read if
    ``top_p`` is below 1 and ``top_k`` 0.
    """

    token_ids: list[int]
    weights: Floats
    sums: Floats
    total: float
    uniform: float
    top_k: int
    top_p: float
    min_p: float

    def settle(self, ask: Ask) -> int | None:
        """The token drawn from those that ``ask`` allows; None if it takes a mask to tell."""
        allowed = _Allowed()
        start = 0
        for end in ENDS:
            token_ids = self.token_ids[start:end]
            is_hopeless = (start >= LAST_START and not allowed.sums) or (
                start == FEW and not self._would_settle()
            )
            if is_hopeless or not token_ids:
                return None
            allowed.add(token_ids, self.weights[start : start + len(token_ids)], ask(token_ids))
            start += len(token_ids)
            place = self._place(allowed, start)
            if place is not None:
                return allowed.token_ids[place]
        return None

    def _would_settle(self) -> bool:
        """Whether the draw would be settled if all the ranked tokens were allowed."""
        num_tokens = len(self.token_ids)
        weights, sums = list(self.weights[:num_tokens]), list(self.sums[1 : num_tokens + 1])
        everything = _Allowed(self.token_ids, weights, sums)
        return self._place(everything, num_tokens) is not None

    def _place(self, allowed: _Allowed, start: int) -> int | None:
        """Where among the allowed tokens before ``start`` the draw falls, if that is certain."""
        if not allowed.sums or allowed.weights[0] <= 0:
            return None
        count = min(len(allowed.sums), self.top_k or len(allowed.sums))
        lowest = self._mass(allowed, count, 0.0, BELOW, start)
        highest = self._mass(allowed, count, self._unknown(count, start), ABOVE, start)
        place = bisect_right(allowed.sums, self.uniform * lowest * BELOW, 0, count)
        is_certain = place == bisect_right(allowed.sums, self.uniform * highest * ABOVE, 0, count)
        return place if is_certain and place < count else None

    def _unknown(self, count: int, start: int) -> float:
        """The most that tokens from ``start`` on may weigh together, if ``count`` before it are allowed."""
        if not self.top_k:
            return max(0.0, self.total * ABOVE - self.sums[start]) if self.top_p < 1 else math.inf
        end = start + self.top_k - count
        inside = min(end, len(self.weights))
        return self.sums[inside] - self.sums[start] + (end - inside) * self.weights[-1]

    def _mass(self, allowed: _Allowed, count: int, unknown: float, margin: float, start: int) -> float:
        """A bound of the sum of what the filters keep: of ``count`` allowed tokens, and others that weigh
        ``unknown`` together."""
        sums = allowed.sums
        limit = self.top_p * (sums[count - 1] + unknown) * margin
        num_kept = bisect_left(sums, limit, 0, count) + 1 if self.top_p < 1 else count + 1
        if self.min_p > 0:
            least = self.min_p * allowed.weights[0] / margin
            if allowed.weights[count - 1] < least:
                num_kept = min(num_kept, bisect_right(allowed.weights, -least, 0, count, key=_negative))
            unknown = min(unknown, self._weight_from(least, start))
        if num_kept <= count:
            return sums[max(num_kept, 1) - 1]
        mass = sums[count - 1] + unknown
        if self.top_p < 1:  # the last token kept is the first to pass the limit
            mass = min(mass, limit + self.weights[min(start, len(self.weights) - 1)])
        return mass

    def _weight_from(self, least: float, start: int) -> float:
        """The weight of the tokens from ``start`` on that weigh ``least``, infinite if not all are known."""
        end = bisect_right(self.weights, -least, start, key=_negative)
        return math.inf if end == len(self.weights) else self.sums[end] - self.sums[start]


def floats(numbers: NDArray[np.floating[Any]]) -> Floats:
    """``numbers (n,)`` for a :class:`RankedDraw`: to convert those that are read only is quicker."""
    return cast("Floats", numbers.data)


def _negative(weight: float) -> float:
    return -weight
