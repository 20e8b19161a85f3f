"""Drawing tokens through the compiled kernel."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.cpu.loader import Kernel, NativeLibrary
from triolet_kernels.ops import MAX_OTHERS, DrawnTokens, DrawSettings, RankedTokens
from triolet_kernels.reference import drawing as reference

__all__ = ["DrawingKernels", "check_drawn"]


def check_drawn(token_ids: NDArray[np.int64]) -> None:
    """Raise MemoryError if the kernel had no room to sort a row in."""
    if (token_ids < 0).any():
        raise MemoryError("no memory to sort a row of logits")


class DrawingKernels:
    """The drawing kernel of one library, or numpy where there is none."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._draw = native.kernels("draw").get(torch.float32)
        self._rank = native.kernels("rank").get(torch.float32)
        self._draw_others = native.kernels("draw_others").get(torch.float32)

    def draw(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None
    ) -> DrawnTokens:
        """MemoryError where there is no room to sort a row in."""
        if self._draw is None:
            return reference.draw_tokens(logits, settings, rows)
        return self._run(self._draw, logits.contiguous(), settings, rows)

    def draw_masked(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> DrawnTokens:
        """MemoryError as :meth:`draw`."""
        if self._draw is None:
            return reference.draw_masked(logits, settings, rows, masks)
        assert logits.is_contiguous(), "they are changed in place"
        assert rows.flags.c_contiguous, "one run of numbers"
        assert masks.flags.c_contiguous, "one run of words"
        return self._run(self._draw, logits, settings, rows, masks)

    def rank(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], count: int
    ) -> RankedTokens:
        """MemoryError as :meth:`draw`."""
        if self._rank is None:
            return reference.rank(logits, settings, rows, count)
        num_rows, size = len(rows), logits.shape[1]
        ranked = RankedTokens(
            token_ids=np.full((num_rows, count), -1),
            weights=np.zeros((num_rows, count), dtype=np.float32),
            totals=np.empty(num_rows),
            highest=np.empty(num_rows, dtype=np.float32),
        )
        inputs = (rows, settings.temperatures, settings.top_k, settings.top_p)
        outputs = (ranked.token_ids, ranked.weights, ranked.totals, ranked.highest)
        self._rank(
            logits.contiguous().data_ptr(),
            *(array.ctypes.data for array in (*inputs, *outputs)),
            num_rows,
            count,
            size,
            *self._team,
        )
        if (ranked.totals < 0).any():
            raise MemoryError(f"no memory to sort a row of {size} logits")
        return ranked

    def draw_others(
        self,
        logits: Tensor,
        rows: NDArray[np.int64],
        token_ids: NDArray[np.int64],
        temperatures: NDArray[np.float64],
        uniforms: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """The logits are changed meanwhile."""
        if self._draw_others is None:
            return reference.draw_others(logits, rows, token_ids, temperatures, uniforms)
        assert logits.is_contiguous(), "they are changed in place"
        num_rows, count = uniforms.shape
        assert count <= MAX_OTHERS, "the kernel has room for so many"
        others = np.empty((num_rows, count), dtype=np.int64)
        inputs = (rows, token_ids, temperatures, np.ascontiguousarray(uniforms))
        self._draw_others(
            logits.data_ptr(),
            *(array.ctypes.data for array in (*inputs, others)),
            num_rows,
            count,
            logits.shape[1],
            *self._team,
        )
        return others

    def _run(
        self,
        kernel: Kernel,
        logits: Tensor,
        settings: DrawSettings,
        rows: NDArray[np.int64] | None,
        masks: NDArray[np.int32] | None = None,
    ) -> DrawnTokens:
        num_rows, size = len(settings.temperatures), logits.shape[1]
        drawn = DrawnTokens(
            token_ids=np.zeros(num_rows, dtype=np.int64),
            highest=np.empty(num_rows, dtype=np.float32),
            num_kept=np.empty(num_rows, dtype=np.int64),
        )
        inputs = (
            settings.temperatures, settings.uniforms, settings.top_k, settings.top_p, settings.min_p,
        )  # fmt: skip
        outputs = (drawn.token_ids, drawn.num_kept, drawn.highest)
        kernel(
            logits.data_ptr(),
            *(None if array is None else array.ctypes.data for array in (rows, masks)),
            *(array.ctypes.data for array in (*inputs, *outputs)),
            num_rows,
            size,
            *self._team,
        )
        check_drawn(drawn.token_ids)
        return drawn
