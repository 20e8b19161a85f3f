"""Memory really goes back to the system, and what comes again is the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from triolet.runtime.residence import return_freed_memory


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_freed_memory_goes_back() -> None:
    pieces = [torch.ones(2_000) for _ in range(8_000)]  # each too small to be mapped by itself
    full = resident_bytes()
    last = pieces[-1]  # at the end of the heap, so that it cannot shrink from there
    del pieces
    return_freed_memory()
    assert full - resident_bytes() > 40 * 2**20
    assert last.sum() == 2_000
