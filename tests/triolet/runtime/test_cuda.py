"""What can be said without a GPU; the rest is asked of one where there is one."""

from __future__ import annotations

import pytest
import torch

from triolet.runtime import cuda
from triolet.runtime.accelerator import CaptureError
from triolet.runtime.cuda import CudaDevice


def test_a_build_without_cuda_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "built without CUDA or ROCm; install a build that has it" in cuda.why_unavailable()


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "check that its driver is installed" in cuda.why_unavailable()


def test_there_is_nothing_to_give_back_before_anything_was_taken() -> None:
    cuda.release_cached_memory()


@pytest.fixture
def device() -> CudaDevice:
    if not cuda.is_available():
        pytest.skip("there is no GPU")
    return CudaDevice(torch.device("cuda"))


@pytest.mark.gpu
def test_values_come_over_as_they_were(device: CudaDevice) -> None:
    source = device.pinned(64)
    source.fill_(7)
    target = torch.zeros(64, dtype=torch.uint8, device=device.torch_device)
    device.upload(source, target)
    fetch = device.fetch([target + 1, target * 2])
    assert [set(values.tolist()) for values in fetch.wait()] == [{8}, {14}]


@pytest.mark.gpu
def test_a_graph_works_on_what_its_inputs_hold(device: CudaDevice) -> None:
    inputs = torch.ones(8, device=device.torch_device)
    (inputs * 3).sum()
    graph = device.capture(lambda: inputs * 3, device.graph_pool())
    inputs.fill_(5)
    graph.replay()
    device.synchronize()
    assert graph.output.tolist() == [15.0] * 8


@pytest.mark.gpu
def test_what_waits_cannot_be_captured(device: CudaDevice) -> None:
    inputs = torch.ones(8, device=device.torch_device)
    stream = torch.cuda.current_stream(device.torch_device)
    with pytest.raises(CaptureError, match="synchroniz"):
        device.capture(lambda: inputs * inputs.sum().item(), device.graph_pool())
    assert torch.cuda.current_stream(device.torch_device) == stream
    cuda.release_cached_memory()
    assert inputs.sum().item() == 8


@pytest.mark.gpu
def test_memory_is_measured(device: CudaDevice) -> None:
    free, total = cuda.memory_of(device.torch_device)
    assert 0 < free <= total
    peak = device.peak_memory(lambda: torch.empty(2**24, dtype=torch.uint8, device=device.torch_device))
    assert peak >= 2**24
    assert torch.cuda.memory_reserved(device.torch_device) < 2**24, "what was tried is given back"


@pytest.mark.gpu
def test_the_memory_of_graphs_is_measured_and_given_back(device: CudaDevice) -> None:
    inputs = torch.ones(2**20, device=device.torch_device)
    before = torch.cuda.memory_reserved(device.torch_device)
    taken = device.graph_memory(lambda: (inputs * 3) + 1)
    assert taken.pool >= 2 * inputs.nbytes
    assert taken.each >= inputs.nbytes
    assert torch.cuda.memory_reserved(device.torch_device) <= before
