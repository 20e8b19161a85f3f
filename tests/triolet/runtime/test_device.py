"""Choices of device, number format and threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from triolet.args import EngineArgs
from triolet.errors import UsageError
from triolet.runtime.cores import num_available_cores
from triolet.runtime.device import (
    choose_cache_dtype,
    choose_device,
    choose_dtype,
    choose_num_threads,
)
from triolet_kernels.preferred_dtype import preferred_dtype

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


def test_cache_is_of_the_activations_dtype_unless_half_of_it_is_to_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose_cache_dtype(EngineArgs(kv_cache_dtype="fp8"), gpu) == torch.float8_e5m2
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert choose_cache_dtype(EngineArgs(dtype="float32"), CPU) == torch.float32
    assert choose_cache_dtype(EngineArgs(kv_cache_dtype="fp8"), gpu) == torch.float8_e4m3fn
    for args in (EngineArgs(), EngineArgs(kernels="reference")):
        assert choose_cache_dtype(replace(args, kv_cache_dtype="int8"), CPU) == torch.int8
    for args, device in ((EngineArgs(), CPU), (EngineArgs(kernels="reference"), gpu)):
        with pytest.raises(
            UsageError, match="without --kernels reference; 8 bits on a CPU are int8"
        ) as raised:
            choose_cache_dtype(replace(args, kv_cache_dtype="fp8"), device)
        assert raised.value.param == "kv_cache_dtype"
    with pytest.raises(UsageError, match="8 bits on a GPU are fp8") as raised:
        choose_cache_dtype(EngineArgs(kv_cache_dtype="int8"), gpu)
    assert raised.value.param == "kv_cache_dtype"


def test_threads_are_as_many_as_cores_unless_given() -> None:
    assert choose_num_threads(EngineArgs()) == num_available_cores()
    assert choose_num_threads(EngineArgs(num_threads=5)) == 5
