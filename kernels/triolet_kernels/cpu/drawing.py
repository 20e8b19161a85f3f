"""Drawing tokens through the compiled kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from triolet_kernels.cpu.loader import NativeLibrary
from triolet_kernels.ops import DrawnTokens, DrawSettings
from triolet_kernels.reference import drawing as reference

__all__ = ["DrawingKernels"]


class DrawingKernels:
    """The drawing kernel of one library, or numpy where there is none."""

    def __init__(self, native: NativeLibrary) -> None:
        self._team = native.team
        self._draw = native.kernels("draw").get(torch.float32)

    def draw(self, logits: Tensor, settings: DrawSettings) -> DrawnTokens:
        """MemoryError where there is no room to sort a row in."""
        if self._draw is None:
            return reference.draw_rows(logits.numpy(), settings)
        logits = logits.contiguous()
        num_rows, size = logits.shape
        drawn = DrawnTokens(
            token_ids=np.empty(num_rows, dtype=np.int64),
            highest=np.empty(num_rows, dtype=np.float32),
            num_kept=np.empty(num_rows, dtype=np.int64),
        )
        inputs = (
            settings.temperatures, settings.uniforms, settings.top_k, settings.top_p, settings.min_p,
        )  # fmt: skip
        outputs = (drawn.token_ids, drawn.num_kept, drawn.highest)
        self._draw(
            logits.data_ptr(),
            *(array.ctypes.data for array in (*inputs, *outputs)),
            num_rows,
            size,
            *self._team,
        )
        if (drawn.token_ids < 0).any():
            raise MemoryError(f"no memory to sort a row of {size} logits")
        return drawn
