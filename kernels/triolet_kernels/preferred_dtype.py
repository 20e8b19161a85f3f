"""The number format that a device is fast at, from what its CPU says of itself.

This module knows of no operation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["preferred_dtype"]


def preferred_dtype(device: torch.device) -> torch.dtype:
    """The number format of activations and KV cache that ``device`` is fast at.

    On a CPU bfloat16 where it is native (AVX512-BF16 or AMX instructions), and where compiled kernels have
    AVX2: they widen it as they read, and multiply quantised weights in int8 for it alone. Else float32.
    """
    import torch

    from triolet_kernels.cpu.loader import is_usable

    if device.type == "cpu":
        flags = _cpu_flags()
        is_fast = flags & {"avx512_bf16", "amx_bf16"} or ({"avx2", "fma", "f16c"} <= flags and is_usable())
        return torch.bfloat16 if is_fast else torch.float32
    return torch.bfloat16


def _cpu_flags() -> frozenset[str]:
    """Instruction set extensions of this CPU as Linux names them; empty where that is not known."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
