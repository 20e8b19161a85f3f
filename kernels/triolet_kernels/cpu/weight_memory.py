"""Memory for packed weights, in large pages where the system has them.

A decode step reads every weight once, from memory. With pages of 4 KB a good part of that time goes to walks
through the page tables, twice as long in a virtual machine, and to prefetching that ends with each page. A
layer's weights are too small for large pages of their own, so they share them, in the order in which they are
read. This module must not know what weights mean.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

__all__ = ["WeightMemory"]

_LARGE_PAGE = 2 << 20
_CACHE_LINE = 64
_REGION = 32 << 20
"""Bytes that are reserved together; those never written to take no memory, but for the rest of a page."""


class WeightMemory:
    """Hands out memory piece by piece. A region goes back to the system with the last tensor in it."""

    def __init__(self) -> None:
        self._region: weakref.ref[mmap.mmap] | None = None
        self._unused = range(0)

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor, in this memory."""
        return self._empty(tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def join(self, parts: Iterable[Tensor], num_rows: int) -> Tensor:
        """Copies of ``parts`` one below another, ``num_rows`` in all: each is done with before the next."""
        whole, start = None, 0
        for part in parts:
            if whole is None:
                size = part.nbytes // len(part) * num_rows
                whole = self._empty(size).view(part.dtype).view(num_rows, *part.shape[1:])
            whole[start : start + len(part)] = part
            start += len(part)
        assert whole is not None, "there is a part"
        return whole

    def _empty(self, size: int) -> Tensor:
        region = None if self._region is None else self._region()
        if region is None or size > len(self._unused):
            region = self._reserve(max(size, _REGION))
        start = self._unused.start
        self._unused = range(start + -(-size // _CACHE_LINE) * _CACHE_LINE, self._unused.stop)
        memory = np.frombuffer(region, dtype=np.uint8, count=size, offset=start)
        return torch.from_numpy(memory)

    def _reserve(self, size: int) -> mmap.mmap:
        region = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a system without large pages: small ones do as well
                region.madvise(mmap.MADV_HUGEPAGE)
        start = -np.frombuffer(region, dtype=np.uint8).ctypes.data % _LARGE_PAGE
        self._region, self._unused = weakref.ref(region), range(start, start + size)
        return region
