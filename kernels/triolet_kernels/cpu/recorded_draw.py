"""The draw at the end of a recorded step: settings go in and tokens come out at places that stay the same.

This module must not know how a step is recorded or run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from triolet_kernels.cpu.drawing import check_drawn
from triolet_kernels.ops import MAX_DRAWN, DrawnTokens, DrawSettings

if TYPE_CHECKING:
    from torch import Tensor

    from triolet_kernels.steps import Draw

__all__ = ["RecordedDraw"]

_SETTINGS = ("temperatures", "uniforms", "top_k", "top_p", "min_p")


class RecordedDraw:
    """``draw`` over up to ``max_rows`` rows. To be recorded, then to be given settings before each run."""

    max_rows = MAX_DRAWN

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._settings = DrawSettings(
            temperatures=np.zeros(MAX_DRAWN),
            uniforms=np.zeros(MAX_DRAWN),
            top_k=np.zeros(MAX_DRAWN, dtype=np.int64),
            top_p=np.ones(MAX_DRAWN),
            min_p=np.zeros(MAX_DRAWN),
        )
        self._last = self._settings
        self._drawn: DrawnTokens

    def record(self, output: Tensor) -> None:
        """Have ``draw`` called with what a step returns for ``max_rows`` rows, while that is recorded."""
        self._drawn = self._draw(output, self._settings)

    def set(self, settings: DrawSettings) -> None:
        """How to draw next, row by row."""
        num_rows = len(settings.temperatures)
        assert num_rows <= MAX_DRAWN, "there is room for so many"
        for name in _SETTINGS:
            values = getattr(settings, name)
            if values is not getattr(self._last, name):  # those of the last run are still there
                getattr(self._settings, name)[:num_rows] = values
        self._last = settings

    def drawn(self, num_rows: int) -> DrawnTokens:
        """What was last drawn, in memory that the next run will use again. Raises MemoryError."""
        token_ids = self._drawn.token_ids[:num_rows]
        check_drawn(token_ids)
        return DrawnTokens(
            token_ids=token_ids,
            highest=self._drawn.highest[:num_rows],
            num_kept=self._drawn.num_kept[:num_rows],
        )
