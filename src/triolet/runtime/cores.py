"""How many processor cores this process may use. It knows no torch, so that any process may ask."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["num_available_cores"]


def num_available_cores(*, quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores that this process may use, by affinity and by its container's quota.

    ``quota_file`` is the ``cpu.max`` of the control group (v2): microseconds of CPU, then of the period.
    """
    num_cores = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return num_cores
    return num_cores if quota == "max" else max(1, min(num_cores, math.ceil(int(quota) / int(period))))
