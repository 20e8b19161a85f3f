"""How to draw after each of a step's rows, as arrays for :meth:`triolet_kernels.ops.Ops.draw`.

It knows requests and where their tokens are; nothing of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.request import Request
from triolet.runtime.random import uniforms
from triolet_kernels.ops import DrawSettings

__all__ = ["HeldSettings", "draw_settings", "held_settings", "settings_at"]


@dataclass(frozen=True, slots=True)
class HeldSettings:
    """Of P positions whose tokens may be refused and drawn again: each draw has a random number of its own.

    ``first``: of the token drawn at first. ``further (P, n)``: the random numbers of those tried after it.
    ``masked``: of the one drawn with a mask.
    """

    first: DrawSettings
    further: NDArray[np.float64]
    masked: DrawSettings


def draw_settings(rows: Sequence[PlanRow]) -> DrawSettings:
    """Those of the last ``num_draft_tokens`` + 1 positions of each row.

    A position's random number belongs to the request's seed and to the position of the token that is drawn.
    Where all is greedy, there are none to be made: they are 0.
    """
    requests = [row.request for row in rows for _ in range(row.num_draft_tokens + 1)]
    return _settings(requests, _uniforms(rows, requests, 1)[:, 0])


def held_settings(rows: Sequence[PlanRow], num_tries: int) -> HeldSettings:
    """Those of the same positions, for ``num_tries`` tokens after the first one."""
    requests = [row.request for row in rows for _ in range(row.num_draft_tokens + 1)]
    numbers = _uniforms(rows, requests, 2 + num_tries)
    first = _settings(requests, numbers[:, 0])
    return HeldSettings(first, numbers[:, 2:], replace(first, uniforms=np.ascontiguousarray(numbers[:, 1])))


def settings_at(settings: DrawSettings, positions: NDArray[np.int64]) -> DrawSettings:
    """Those of some of the positions that ``settings`` are of."""
    return DrawSettings(
        temperatures=settings.temperatures[positions],
        uniforms=settings.uniforms[positions],
        top_k=settings.top_k[positions],
        top_p=settings.top_p[positions],
        min_p=settings.min_p[positions],
    )


def _settings(requests: Sequence[Request], numbers: NDArray[np.float64]) -> DrawSettings:
    return DrawSettings(
        temperatures=np.array([request.temperature for request in requests], dtype=np.float64),
        uniforms=np.ascontiguousarray(numbers),
        top_k=np.array([request.top_k for request in requests], dtype=np.int64),
        top_p=np.array([request.top_p for request in requests], dtype=np.float64),
        min_p=np.array([request.min_p for request in requests], dtype=np.float64),
    )


def _uniforms(rows: Sequence[PlanRow], requests: Sequence[Request], count: int) -> NDArray[np.float64]:
    if not any(request.temperature for request in requests):
        return np.zeros((len(requests), count))
    places = [
        row.start + row.num_tokens - row.num_draft_tokens + offset
        for row in rows
        for offset in range(row.num_draft_tokens + 1)
    ]
    seeds = np.array([request.seed for request in requests], dtype=np.int64)
    return uniforms(seeds, np.array(places, dtype=np.int64), count)
