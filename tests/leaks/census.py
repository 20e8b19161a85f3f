"""Counts of what a process holds: objects, tasks, threads, files, children, memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import sniffio
import trio

__all__ = ["Census", "child_processes", "cyclic_garbage", "resident_bytes", "take_census"]


@dataclass(frozen=True)
class Census:
    """``objects`` are the live instances of this package's classes, by name."""

    objects: Counter[str]
    num_tasks: int
    num_files: int
    threads: frozenset[str]
    children: frozenset[int]


def take_census() -> Census:
    """Count what is there now, on the running event loop."""
    gc.collect()
    return Census(
        objects=Counter(name for entry in gc.get_objects() if (name := _name_of(entry))),
        num_tasks=_num_tasks(),
        num_files=len(os.listdir("/proc/self/fd")),
        threads=frozenset(thread.name for thread in threading.enumerate()),
        children=child_processes(),
    )


def cyclic_garbage() -> Counter[str]:
    """Instances of this package's classes that only the cycle collector can free, since it last ran."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(name for entry in gc.garbage if (name := _name_of(entry)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def child_processes() -> frozenset[int]:
    """Process ids of this process's children, zombies too. Quick: it is asked before and after each test."""
    children: list[str] = []
    for thread_id in os.listdir("/proc/self/task"):
        with suppress(FileNotFoundError), open(f"/proc/self/task/{thread_id}/children") as file:
            children += file.read().split()
    return frozenset(map(int, children))


def resident_bytes() -> int:
    """Physical memory in use."""
    num_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def _name_of(entry: object) -> str | None:
    kind = type(entry)
    # Compiled extensions have classes whose __module__ is no string.
    return kind.__qualname__ if str(kind.__module__).startswith("triolet.") else None


def _num_tasks() -> int:
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())
