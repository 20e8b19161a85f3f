"""Every way in which the GPU's kernels of drawing tokens are started, without one: tensors hold no values.

Must not know what is done with a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from triolet_kernels.device_draws import (
    DeviceAdjustments,
    DeviceDraws,
    DeviceDrawSettings,
    DeviceLogprobs,
)
from triolet_kernels.gpu.adjusting import AdjustingKernels
from triolet_kernels.gpu.drawing import DrawingKernels
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.logprobs import LogprobKernels

__all__ = ["drawing_cases"]

META = torch.device("meta")
NUM_ROWS, MAX_TOP = 8, 20
SIZES = (49_152, 128_256, 262_144)


def drawing_cases(device: GpuDevice) -> Iterator[tuple[str, Callable[[], object]]]:
    """Names of cases, and what starts their kernels."""
    drawing, adjusting, logprobs = DrawingKernels(device), AdjustingKernels(device), LogprobKernels(device)
    draws = DeviceDraws.allocate(NUM_ROWS, META)
    for size in SIZES:
        logits = torch.empty(NUM_ROWS, size, device=META)
        settings = DeviceDrawSettings.allocate(NUM_ROWS, META)
        yield (
            f"draw of {size}",
            lambda x=logits, s=settings: drawing.draw_on_device(x, s, draws),  # type: ignore[misc]
        )
    adjustments = DeviceAdjustments.allocate(
        NUM_ROWS, SIZES[1], META, num_histories=4, num_masks=4, num_biases=300
    )
    logits, found = (
        torch.empty(NUM_ROWS, SIZES[1], device=META),
        DeviceLogprobs.allocate(NUM_ROWS, MAX_TOP, META),
    )
    yield "adjustments", lambda: adjusting.adjust_on_device(logits, adjustments)
    yield "counts", lambda: adjusting.note_on_device(adjustments, draws.token_ids)
    for is_processed in (False, True):
        yield (
            f"log-probabilities{', processed' if is_processed else ''}",
            lambda p=is_processed: logprobs.logprobs_on_device(logits, draws, found, is_processed=p),  # type: ignore[misc]
        )
