"""Giving the memory of weights and KV cache back to the system while a runner is kept, and having them again.

This module knows neither files nor what the parts are used for.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from triolet.runtime.cuda import release_cached_memory

__all__ = ["Sources", "return_freed_memory", "trim_allocator"]

M = TypeVar("M", covariant=True)
C = TypeVar("C", covariant=True)


@dataclass(frozen=True, slots=True)
class Sources(Generic[M, C]):
    """Where weights and KV cache come from, as often as they are asked for; both as they were at first."""

    load_model: Callable[[], M]
    allocate_kv_cache: Callable[[], C]


def return_freed_memory() -> None:
    """Have what Python, the C library and the device's allocator keep for later given back to the system."""
    gc.collect()
    release_cached_memory()
    trim_allocator()


def trim_allocator() -> None:
    """Have what the C library keeps for later given back to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc has it
        trim(0)
