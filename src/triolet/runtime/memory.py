"""How much memory this process may still take: of the machine, of its control group, of a GPU.

It knows nothing of models or caches.

Sources: proc(5) for ``MemAvailable``; the kernel's ``Documentation/admin-guide/cgroup-v2.rst`` and
``cgroup-v1/memory.rst`` for the limits of a container.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import torch

from triolet.runtime import cuda

__all__ = ["available_memory", "available_system_memory"]


def available_memory(device: torch.device, gpu_share: float = 1.0) -> int:
    """Bytes that can still be allocated on ``device``; of a GPU's memory, up to ``gpu_share`` of it all."""
    if device.type == "cuda":
        free, total = cuda.memory_of(device)
        return max(0, free - round((1 - gpu_share) * total))
    return available_system_memory()


def available_system_memory(root: Path = Path("/")) -> int:
    """Bytes available on the machine, or fewer where a control group around this process leaves fewer.

    Page cache that the kernel would give up first counts as available. ``root`` is where ``/proc`` and
    ``/sys`` are found.
    """
    machine = _read_fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    return min([machine, *_group_headrooms(root)])


def _group_headrooms(root: Path) -> Iterator[int]:
    """What each limited control group around this process has left, in bytes."""
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            headroom = _headroom(base / folder, *names)
            if headroom is not None:
                yield headroom


def _headroom(folder: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> int | None:
    limit, usage = _read_text(folder / limit_name).strip(), _read_text(folder / usage_name).strip()
    if not limit.isdigit() or not usage.isdigit():
        return None
    reclaimable = _read_fields(folder / "memory.stat").get(reclaimable_name, 0)
    return max(0, int(limit) - int(usage) + reclaimable)


def _read_fields(path: Path) -> dict[str, int]:
    """``name number …`` lines as a mapping."""
    fields = (line.split() for line in _read_text(path).splitlines())
    return {words[0]: int(words[1]) for words in fields if len(words) >= 2 and words[1].isdigit()}


def _read_text(path: Path) -> str:
    """The text of a kernel file; empty where this kernel or container does not have it."""
    try:
        return path.read_text()
    except OSError:
        return ""
