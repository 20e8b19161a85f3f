"""The variants of the compiled kernels that this machine runs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from triolet_kernels.cpu import CpuOps
from triolet_kernels.cpu.loader import INSTRUCTION_SETS, LIBRARY_PATH, NativeLibrary


def build_if_missing() -> None:
    """Compile the kernels in a checkout where nobody has; a failure to compile fails the tests."""
    if LIBRARY_PATH.exists():
        return
    import os
    import platform

    from build_cpu import compile_library

    compile_library(Path(__file__).parents[3], os.environ, platform.machine())


def runs(isa: str) -> bool:
    library = ctypes.CDLL(str(LIBRARY_PATH))
    return hasattr(library, f"triolet_runs_{isa}") and bool(library[f"triolet_runs_{isa}"]())


def make_ops(isa: str, num_threads: int = 1) -> CpuOps:
    if not runs(isa):
        pytest.skip(f"this CPU does not run {isa}")
    return CpuOps(NativeLibrary.open({"TRIOLET_CPU_ISA": isa}, num_threads))


def isa_of(ops: CpuOps) -> str:
    return ops.name.removeprefix("cpu-")


ISAS = list(INSTRUCTION_SETS)
