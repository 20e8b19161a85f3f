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

from triolet_kernels import ops
from triolet_kernels.ops import select_ops


def test_the_reference_can_be_asked_for() -> None:
    assert select_ops(torch.device("cpu"), is_reference=True).name == "reference"


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
    monkeypatch.setenv("TRIOLET_GPU_LINEAR", "int3")
    with pytest.raises(ValueError, match="TRIOLET_GPU_LINEAR is 'int3'; on sm_90 it may be int8 or fp8"):
        select_ops(torch.device("cuda"))


def test_a_cpu_does_not_import_triton() -> None:
    code = "import sys, torch; from triolet_kernels.ops import select_ops; select_ops(torch.device('cpu'));"
    code += "print('triton' in sys.modules, 'triolet_kernels.gpu' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(ops.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "False False\n", done.stderr
