"""How kernels are started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kernels.gpu.interpreted import interpreted_device
from triton import knobs

from triolet_kernels.gpu.configurations import Configuration
from triolet_kernels.gpu.launch import GpuDevice, launch_kernel


def test_the_interpreter_runs_the_kernels_of_these_tests() -> None:
    assert knobs.runtime.interpret


def test_an_empty_grid_starts_nothing() -> None:
    configuration = Configuration(num_warps=1, num_stages=1, constants={})
    launch_kernel(None, (3, 0), configuration)


def test_all_devices_start_kernels_in_the_same_way() -> None:
    assert interpreted_device().launch is launch_kernel


@pytest.mark.parametrize(
    ("properties", "hip", "expected"),
    [
        ({"major": 9, "minor": 0}, None, "sm_90"),
        ({"major": 8, "minor": 6}, None, "sm_80"),
        ({"major": 9, "minor": 4, "gcnArchName": "gfx942:sramecc+:xnack-"}, "6.4", "gfx942"),
    ],
)
def test_the_table_is_that_of_the_device(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, Any], hip: str | None, expected: str
) -> None:
    found = SimpleNamespace(multi_processor_count=100, **properties)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(torch.version, "hip", hip)
    device = GpuDevice.of(torch.device("cuda", 0))
    assert device.configurations.architecture == expected
    assert device.num_multiprocessors == 100
