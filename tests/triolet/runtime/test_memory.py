"""Available memory, read from made-up kernel files and once from the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from triolet.runtime import cuda
from triolet.runtime.memory import available_memory, available_system_memory

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with 8000 MiB available and no control groups."""
    write(tmp_path, "proc/meminfo", f"MemTotal: {16000 * 1024} kB\nMemAvailable: {8000 * 1024} kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_group(root: Path, folder: str, limit: str, usage: int, reclaimable: int = 0) -> None:
    base = f"sys/fs/cgroup/{folder}"
    write(root, f"{base}/memory.max", f"{limit}\n")
    write(root, f"{base}/memory.current", f"{usage}\n")
    write(root, f"{base}/memory.stat", f"anon 5\ninactive_file {reclaimable}\n")


def test_machine_without_groups(root: Path) -> None:
    assert available_system_memory(root) == 8000 * MIB


def test_group_with_a_limit(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, "", str(1000 * MIB), 300 * MIB, 50 * MIB)
    assert available_system_memory(root) == 750 * MIB


def test_group_without_a_limit(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/user/shell\n")
    write_group(root, "user/shell", "max", 300 * MIB)
    assert available_system_memory(root) == 8000 * MIB


def test_limit_of_an_outer_group(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/pods/one\n")
    write_group(root, "pods/one", str(4000 * MIB), 0)
    write_group(root, "pods", str(2000 * MIB), 500 * MIB)
    assert available_system_memory(root) == 1500 * MIB


def test_group_over_its_limit_has_nothing_left(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write_group(root, "", str(100 * MIB), 101 * MIB)
    assert available_system_memory(root) == 0


def test_old_groups(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n")
    base = "sys/fs/cgroup/memory/job"
    write(root, f"{base}/memory.limit_in_bytes", f"{3000 * MIB}\n")
    write(root, f"{base}/memory.usage_in_bytes", f"{1000 * MIB}\n")
    write(root, f"{base}/memory.stat", f"inactive_file 1\ntotal_inactive_file {100 * MIB}\n")
    assert available_system_memory(root) == 2100 * MIB


def test_this_machine_has_some() -> None:
    assert 2**26 < available_memory(torch.device("cpu")) < 2**50


def test_of_a_gpu_only_a_share_may_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "memory_of", lambda device: (700, 1000))
    assert available_memory(torch.device("cuda")) == 700
    assert available_memory(torch.device("cuda"), 0.9) == 600
    assert available_memory(torch.device("cuda"), 0.2) == 0
