"""How to draw after each of a step's rows, as arrays for :meth:`triolet_kernels.ops.Ops.draw`.

It knows requests and where their tokens are; nothing of logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.request import Request
from triolet.runtime.random import uniforms
from triolet_kernels.ops import DrawSettings

__all__ = ["draw_settings", "redraw_settings"]


def draw_settings(rows: Sequence[PlanRow]) -> DrawSettings:
    """Those of the last ``num_draft_tokens`` + 1 positions of each row.

    A position's random number belongs to the request's seed and to the position of the token that is drawn.
    Where all is greedy, there are none to be made: they are 0.
    """
    requests = [row.request for row in rows for _ in range(row.num_draft_tokens + 1)]
    temperatures = np.array([request.temperature for request in requests], dtype=np.float64)
    return DrawSettings(
        temperatures=temperatures,
        uniforms=_uniforms(rows, requests) if temperatures.any() else np.zeros(len(requests)),
        top_k=np.array([request.top_k for request in requests], dtype=np.int64),
        top_p=np.array([request.top_p for request in requests], dtype=np.float64),
        min_p=np.array([request.min_p for request in requests], dtype=np.float64),
    )


def redraw_settings(
    rows: Sequence[PlanRow], settings: DrawSettings, positions: NDArray[np.int64]
) -> DrawSettings:
    """Those of some of the positions that :func:`draw_settings` had settings of, to be drawn once more.

    Each has another random number: the first one has just led to a token that may not come.
    """
    requests = [row.request for row in rows for _ in range(row.num_draft_tokens + 1)]
    return DrawSettings(
        temperatures=settings.temperatures[positions],
        uniforms=_uniforms(rows, requests, is_second=True)[positions],
        top_k=settings.top_k[positions],
        top_p=settings.top_p[positions],
        min_p=settings.min_p[positions],
    )


def _uniforms(
    rows: Sequence[PlanRow], requests: Sequence[Request], *, is_second: bool = False
) -> NDArray[np.float64]:
    places = [
        row.start + row.num_tokens - row.num_draft_tokens + offset
        for row in rows
        for offset in range(row.num_draft_tokens + 1)
    ]
    seeds = np.array([request.seed for request in requests], dtype=np.int64)
    return uniforms(seeds, np.array(places, dtype=np.int64), is_second=is_second)
