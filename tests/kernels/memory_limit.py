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
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.malloc_trim(0)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + LARGE // 2, before[1]))
    holes = []  # what was freed in the midst of the heap, and not given back, would do as well
    try:
        while hole := libc.malloc(LARGE):
            holes.append(hole)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        for hole in holes:
            libc.free(hole)
