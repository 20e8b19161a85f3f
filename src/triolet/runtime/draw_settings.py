"""How to draw after each of a step's rows, as arrays for :meth:`triolet_kernels.ops.Ops.draw`.

It knows requests and where their tokens are; nothing of logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_

import numpy as np
from numpy.typing import NDArray

from triolet.plan import PlanRow
from triolet.request import Request
from triolet.runtime.random import uniforms
from triolet_kernels.ops import DrawSettings

__all__ = ["HeldSettings", "StepSettings", "draw_settings", "held_settings", "settings_at"]


@dataclass(frozen=True, slots=True)
class HeldSettings:
    """Of P positions whose tokens may be refused and drawn again: each draw has a random number of its own.

    ``first``: of the token drawn at first. ``masked``: of the one drawn with a mask. ``seeds`` and ``places
    (P,)``: what the random numbers are made of.
    """

    first: DrawSettings
    masked: DrawSettings
    seeds: NDArray[np.int64]
    places: NDArray[np.int64]

    def further(self, positions: NDArray[np.int64], count: int) -> NDArray[np.float64]:
        """The random numbers of ``count`` tokens tried after the first one at some positions, a row each."""
        if not self.first.temperatures[positions].any():
            return np.zeros((len(positions), count))
        return uniforms(self.seeds[positions], self.places[positions], 2 + count)[:, 2:]


class StepSettings:
    """Settings of one step after the other, whose rows mostly stay the same.

    What has not changed is kept: between two steps caches are cold, and each array takes several times as
    long to make as in a loop.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._settings = held_settings(()).first
        self._seeds = np.zeros(0, dtype=np.int64)
        self._is_random = False

    def of(self, rows: Sequence[PlanRow]) -> DrawSettings:
        """As :func:`draw_settings`."""
        if any(row.num_draft_tokens for row in rows):
            return draw_settings(rows)
        requests = [row.request for row in rows]
        if len(requests) != len(self._requests) or not all(map(is_, requests, self._requests)):
            held = held_settings(rows)
            self._requests, self._settings, self._seeds = requests, held.first, held.seeds
            self._is_random = any(request.temperature for request in requests)
        elif self._is_random:
            places = np.array([row.start + row.num_tokens for row in rows], dtype=np.int64)
            numbers = np.ascontiguousarray(uniforms(self._seeds, places, 2)[:, 0])
            self._settings = replace(self._settings, uniforms=numbers)
        return self._settings


def draw_settings(rows: Sequence[PlanRow]) -> DrawSettings:
    """Those of the last ``num_draft_tokens`` + 1 positions of each row.

    A position's random number belongs to the request's seed and to the position of the token that is drawn.
    Where all is greedy, there are none to be made: they are 0.
    """
    return held_settings(rows).first


def held_settings(rows: Sequence[PlanRow]) -> HeldSettings:
    """Those of the same positions, where tokens may be refused."""
    requests = [row.request for row in rows for _ in range(row.num_draft_tokens + 1)]
    seeds = np.array([request.seed for request in requests], dtype=np.int64)
    places = np.array(
        [
            row.start + row.num_tokens - row.num_draft_tokens + offset
            for row in rows
            for offset in range(row.num_draft_tokens + 1)
        ],
        dtype=np.int64,
    )
    is_random = any(request.temperature for request in requests)
    numbers = uniforms(seeds, places, 2) if is_random else np.zeros((len(requests), 2))
    first = _settings(requests, numbers[:, 0])
    masked = replace(first, uniforms=np.ascontiguousarray(numbers[:, 1]))
    return HeldSettings(first, masked, seeds, places)


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
