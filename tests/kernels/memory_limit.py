"""Running out of memory on purpose."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LARGE = 64 << 20
"""Bytes that cannot be had at once under the limit."""


@contextmanager
def no_large_memory() -> Iterator[None]:
    """Within it the process may have a little more memory than it has now, but not LARGE bytes at once."""
    ctypes.CDLL(None).malloc_trim(0)  # what was freed, but not yet given back, would do as well
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LARGE // 2, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
