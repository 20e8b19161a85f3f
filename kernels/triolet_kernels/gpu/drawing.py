"""Drawing tokens on the device, from rows of any size, without sorting them and without waiting.

The filters, their order and the draw by inversion are those of :mod:`triolet_kernels.reference.drawing`. What
is drawn from a row depends on its logits, settings, seed and position alone: sums are of whole numbers, which
are the same in any order, however a row is shared out. This module knows nothing of requests.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.device_draws import DeviceDraws, DeviceDrawSettings
from triolet_kernels.gpu.adjusting import AdjustingKernels
from triolet_kernels.gpu.drawing_kernels import settle
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.row_scan import RowScan, part_constants
from triolet_kernels.ops import DrawnTokens, DrawSettings

__all__ = ["DrawingKernels"]


class DrawingKernels:
    """The draws on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._scan = RowScan(device)
        self._adjusting = AdjustingKernels(device)

    def draw_on_device(self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws) -> None:
        """Draw from each row of ``logits (R, V)`` float32 into ``draws``, without waiting."""
        self._run(logits, settings, draws, uniforms=None)

    def draw(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64] | None = None
    ) -> DrawnTokens:
        """See :meth:`triolet_kernels.ops.Ops.draw`; it waits for the device."""
        device = logits.device
        if rows is not None:
            logits = logits[torch.from_numpy(rows).to(device)]
        draws = DeviceDraws.allocate(len(logits), device)
        uniforms = torch.from_numpy(settings.uniforms).to(device)
        self._run(logits.contiguous(), _on_device(settings, device), draws, uniforms=uniforms)
        results = (draws.token_ids, draws.highest, draws.num_kept)
        return DrawnTokens(*(result.cpu().numpy() for result in results))

    def draw_masked(
        self, logits: Tensor, settings: DrawSettings, rows: NDArray[np.int64], masks: NDArray[np.int32]
    ) -> DrawnTokens:
        """See :meth:`triolet_kernels.ops.Ops.draw_masked`; it waits for the device."""
        self._adjusting.forbid(logits, rows, masks)
        return self.draw(logits, settings, rows)

    def _run(
        self, logits: Tensor, settings: DeviceDrawSettings, draws: DeviceDraws, uniforms: Tensor | None
    ) -> None:
        num_rows, size = logits.shape
        filters = (settings.temperatures, settings.top_k, settings.top_p, settings.min_p)
        scratch = draws.scratch
        self._scan.look_through(logits, scratch, *filters)
        self._scan.launch(
            "settle_draw",
            settle,
            (num_rows,),
            *(logits, scratch.best, scratch.num_candidates, scratch.candidates, scratch.part_masses),
            *(*filters, settings.seeds, settings.positions, settings.numbers),
            settings.temperatures if uniforms is None else uniforms,
            *(draws.token_ids, draws.highest, draws.num_kept, draws.masses),
            IS_SEEDED=uniforms is None,
            **part_constants(size),
        )


def _on_device(settings: DrawSettings, device: torch.device) -> DeviceDrawSettings:
    """The same, where the random numbers are given and not made."""
    given = {
        name: torch.from_numpy(array).to(device)
        for name, array in {
            "temperatures": settings.temperatures,
            "top_k": settings.top_k,
            "top_p": settings.top_p,
            "min_p": settings.min_p,
        }.items()
    }
    none = torch.zeros_like(given["top_k"])
    return DeviceDrawSettings(**given, seeds=none, positions=none, numbers=none)
