"""Choices of device, number format and threads."""

from __future__ import annotations

import pytest
import torch

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.runtime.cores import num_available_cores
from triolet.runtime.device import choose_device, choose_dtype, choose_num_threads
from triolet_kernels.ops import preferred_dtype

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False], ids=["gpu", "no-gpu"])
def has_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param)
    return bool(request.param)


def test_auto_is_the_gpu_if_there_is_one(has_gpu: bool) -> None:
    assert choose_device(EngineArgs()) == torch.device("cuda" if has_gpu else "cpu")


def test_cpu_is_the_cpu(has_gpu: bool) -> None:
    assert choose_device(EngineArgs(device="cpu")) == CPU


def test_cuda_needs_a_gpu(has_gpu: bool) -> None:
    if has_gpu:
        assert choose_device(EngineArgs(device="cuda")) == torch.device("cuda")
    else:
        with pytest.raises(UsageError, match="--device cpu") as raised:
            choose_device(EngineArgs(device="cuda"))
        assert raised.value.param == "device"


def test_dtype() -> None:
    assert choose_dtype(EngineArgs(), CPU) == preferred_dtype(CPU)
    assert choose_dtype(EngineArgs(dtype="float32"), CPU) == torch.float32
    assert choose_dtype(EngineArgs(dtype="bfloat16"), CPU) == torch.bfloat16
    assert choose_dtype(EngineArgs(kernels="reference"), CPU) == torch.float32
    with pytest.raises(UsageError, match="plain float32") as raised:
        choose_dtype(EngineArgs(kernels="reference", dtype="bfloat16"), CPU)
    assert raised.value.param == "dtype"


def test_threads_are_as_many_as_cores_unless_given() -> None:
    assert choose_num_threads(EngineArgs()) == num_available_cores()
    assert choose_num_threads(EngineArgs(num_threads=5)) == 5
