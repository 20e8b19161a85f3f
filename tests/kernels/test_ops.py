"""Choosing an implementation and a number format."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.kernels.cpu.variants import build_if_missing

from build_cpu import source_digest
from triolet_kernels import ops
from triolet_kernels.cpu import loader
from triolet_kernels.ops import preferred_dtype, select_ops


def test_the_reference_can_be_asked_for() -> None:
    assert select_ops(torch.device("cpu"), is_reference=True).name == "reference"


def test_preferred_dtype_is_one_the_kernels_take() -> None:
    assert preferred_dtype(torch.device("cpu")) in (torch.float32, torch.bfloat16)
    assert preferred_dtype(torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "avx512_bf16"}, torch.bfloat16),
        ({"avx2", "fma", "f16c"}, torch.bfloat16),  # for the sake of the int8 kernels
        ({"avx2", "fma"}, torch.float32),  # for which they were not compiled
        ({"sse2"}, torch.float32),
    ],
)
def test_preferred_dtype_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: torch.dtype
) -> None:
    build_if_missing()
    monkeypatch.setattr(ops, "_cpu_flags", lambda: frozenset(flags))
    assert preferred_dtype(torch.device("cpu")) == expected


@pytest.mark.parametrize("is_there", [False, True])
def test_without_usable_kernels_only_native_bfloat16_is_preferred(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    path = tmp_path / "libtriolet_cpu.so"
    if is_there:
        build_if_missing()
        digest = source_digest(loader.LIBRARY_PATH.parent).encode()
        path.write_bytes(loader.LIBRARY_PATH.read_bytes().replace(digest, digest[::-1]))  # of other sources
    monkeypatch.setattr(loader, "LIBRARY_PATH", path)
    monkeypatch.setattr(ops, "_cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    assert preferred_dtype(torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_without_triton_a_gpu_runs_the_reference_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert select_ops(torch.device(device)).name == "reference"
    assert ("pip install 'triolet[gpu]'" in caplog.text) == (device == "cuda")


def test_a_gpu_runs_triton_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    found = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    assert select_ops(torch.device("cuda")).name == "gpu-sm_90"
    for value, expected in (("1", True), ("0", False)):
        monkeypatch.setenv("TRIOLET_BATCH_INVARIANT", value)
        assert getattr(select_ops(torch.device("cuda")), "is_batch_invariant") is expected  # noqa: B009


def test_a_cpu_does_not_import_triton() -> None:
    code = "import sys, torch; from triolet_kernels.ops import select_ops; select_ops(torch.device('cpu'));"
    code += "print('triton' in sys.modules, 'triolet_kernels.gpu' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(ops.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "False False\n", done.stderr
