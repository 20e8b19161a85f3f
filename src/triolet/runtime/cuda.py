"""Everything that is asked of ``torch.cuda``, which is CUDA, or HIP on AMD; nothing else calls it.

:class:`CudaDevice` is one GPU as the runner sees it. It belongs to the thread that made it. Importing this
module starts nothing: a driver is looked for when somebody asks. It knows nothing of models or steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.runtime.accelerator import CaptureError, GraphMemory

__all__ = ["CudaDevice", "float8_of", "is_available", "memory_of", "release_cached_memory", "why_unavailable"]


NUM_TRIED_GRAPHS = 4
"""To see what one takes."""


def is_available() -> bool:
    """Whether this torch sees a GPU."""
    return torch.cuda.is_available()


def why_unavailable() -> str:
    """What is missing, and what to do about it."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} was built without CUDA or ROCm; install a build that has it: see "
            "https://pytorch.org/get-started"
        )
    return (
        f"torch {torch.__version__} sees no GPU; check that its driver is installed (nvidia-smi or rocm-smi "
        "lists the GPU) and that CUDA_VISIBLE_DEVICES does not hide it"
    )


def float8_of(device: torch.device) -> torch.dtype:
    """The 8-bit format that a GPU's kernels can convert: with more digits from compute capability 8.9 on."""
    has_e4m3 = torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 9)
    return torch.float8_e4m3fn if has_e4m3 else torch.float8_e5m2


def memory_of(device: torch.device) -> tuple[int, int]:
    """Free and total bytes of a GPU."""
    free, total = torch.cuda.mem_get_info(device)
    return int(free), int(total)


def release_cached_memory() -> None:
    """Give what torch keeps for later back to the GPU, if there is one."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@contextmanager
def _waits_raise() -> Iterator[None]:
    """Where the host would wait for a value, which a capture cannot, RuntimeError is raised."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that not every wait is found: the others fail the capture
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _CudaFetch:
    def __init__(self, event: torch.cuda.Event, values: list[Tensor]) -> None:
        self._event = event
        self._values = values

    def wait(self) -> list[NDArray[Any]]:
        self._event.synchronize()
        return [value.numpy() for value in self._values]


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        self._graph.replay()


class CudaDevice:
    """A GPU: work goes to its current stream, results leave on one of their own."""

    def __init__(self, torch_device: torch.device) -> None:
        index = torch.cuda.current_device() if torch_device.index is None else torch_device.index
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._leaving = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]

    def pinned(self, num_bytes: int) -> Tensor:
        # Torch keeps pinned memory for later, and gives none out again that is still being copied.
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def upload(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def fetch(self, tensors: Sequence[Tensor]) -> _CudaFetch:
        self._leaving.wait_stream(torch.cuda.current_stream(self.torch_device))
        values = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        # A thread that waits is to sleep: the loop's thread has other work for the core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._leaving):
            for value, tensor in zip(values, tensors, strict=True):
                value.copy_(tensor, non_blocking=True)
                tensor.record_stream(self._leaving)
            event.record(self._leaving)
        return _CudaFetch(event, values)

    def graph_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], Tensor], pool: Any) -> _CudaGraph:
        graph = torch.cuda.CUDAGraph()
        # A capture that fails ends on the stream that it was made on, and torch may go on believing in it.
        current = torch.cuda.current_stream(self.torch_device)
        try:
            with _waits_raise():
                function()
            with (
                torch.cuda.stream(current),
                torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
            ):
                output = function()
        except RuntimeError as error:
            raise CaptureError(str(error)) from error
        return _CudaGraph(graph, output)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def peak_memory(self, function: Callable[[], object]) -> int:
        self.synchronize()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        try:
            function()
            self.synchronize()
            return max(0, torch.cuda.max_memory_allocated(self.torch_device) - before)
        finally:
            # What torch would keep is counted as taken when one asks how much is left.
            torch.cuda.empty_cache()

    def graph_memory(self, function: Callable[[], Tensor]) -> GraphMemory:
        function()  # what is loaded at first use is not the graphs'
        self.synchronize()
        torch.cuda.empty_cache()
        pool, graphs = self.graph_pool(), list[_CudaGraph]()
        free, reserved = self._free_and_reserved()
        try:
            pool_bytes = 0
            for _ in range(NUM_TRIED_GRAPHS):
                graphs.append(self.capture(function, pool))
                graphs[-1].replay()
                self.synchronize()
                torch.cuda.empty_cache()
                if len(graphs) == 1:
                    pool_bytes = self._free_and_reserved()[1] - reserved
            free_after, reserved_after = self._free_and_reserved()
            # The driver's own share is not torch's to count, and comes in pieces.
            of_driver = max(0, free - free_after - (reserved_after - reserved))
            each = graphs[0].output.nbytes + -(-of_driver // len(graphs))
            return GraphMemory(pool=pool_bytes, each=each)
        finally:
            graphs.clear()
            torch.cuda.empty_cache()

    def _free_and_reserved(self) -> tuple[int, int]:
        return memory_of(self.torch_device)[0], torch.cuda.memory_reserved(self.torch_device)
