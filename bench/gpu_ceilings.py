"""What a machine copies and multiplies at most, as torch does it.

Knows nothing of what is held against it.
"""

from __future__ import annotations

import torch

from bench.gpu_timing import Figures, seconds_of

__all__ = ["Ceilings", "measure_ceilings"]

Ceilings = tuple[float, float]
"""Bytes a second of memory, and operations a second."""


def measure_ceilings(
    figures: Figures, device: torch.device, dtype: torch.dtype, *, is_tiny: bool
) -> Ceilings:
    """Bytes a second that torch copies or reads, and operations a second that it multiplies with, at most."""
    num_bytes = 2**20 if is_tiny else 2**31
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = 2 * num_bytes / seconds_of(lambda: target.copy_(source), device)
    figures.add("ceilings", f"copy of {num_bytes >> 20} MiB", copied / 1e9, "GB/s")
    numbers = source.view(torch.float32)
    read = num_bytes / seconds_of(numbers.sum, device)
    figures.add("ceilings", f"sum of {num_bytes >> 20} MiB", read / 1e9, "GB/s")
    size = 64 if is_tiny else 8192
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    multiplied = 2 * size**3 / seconds_of(lambda: left @ right, device)
    figures.add("ceilings", f"matmul of {size}³", multiplied / 1e12, "TFLOP/s")
    return max(copied, read), multiplied
