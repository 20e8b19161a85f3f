"""A device with a time of its own, on which nothing is known before it was waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.runtime.accelerator import CaptureError, GraphMemory

__all__ = ["FakeDevice"]

CPU = torch.device("cpu")
POISON = 0xA5


class FakeDevice:
    """Computes at once, and keeps the results to itself until the time at which a device would have them.

    ``now`` is the host's time in seconds, which goes on by waiting alone; each fetch ends a step, which takes
    ``step_seconds``. ``waits``: how long each wait of the host was. What a real device would get wrong raises
    here: a wait where none is allowed (:meth:`no_waits`), a copy whose ends were written before it was done.
    A graph's output is no number once another was replayed, a pool of no use without its graphs. ``fail`` is
    called with every upload and may raise.
    """

    torch_device = CPU

    def __init__(self, *, step_seconds: float = 1.0, captures: bool = True) -> None:
        self.step_seconds = step_seconds
        self.captures = captures
        self.fail: Callable[[], None] = lambda: None
        self.before_wait: Callable[[], None] = lambda: None
        self.now = 0.0
        self.busy_until = 0.0
        self.waits: list[float] = []
        self.num_replays = 0
        self.num_captures = 0
        self._may_wait = True
        self._uploads: list[tuple[Tensor, Tensor]] = []
        self._graphs: WeakSet[FakeGraph] = WeakSet()

    @contextmanager
    def no_waits(self) -> Iterator[None]:
        """The host must not wait in here."""
        self._may_wait = False
        try:
            yield
        finally:
            self._may_wait = True

    def wait_until(self, time: float) -> None:
        assert self._may_wait, "the host waits for the device"
        self.before_wait()
        self.waits.append(max(0.0, time - self.now))
        self.now = max(self.now, time)
        for source, copy in self._uploads:
            assert torch.equal(source, copy), "written before it was copied"
        self._uploads.clear()

    def pinned(self, num_bytes: int) -> Tensor:
        return torch.full((num_bytes,), POISON, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        self.fail()
        target.copy_(source)
        self._uploads.append((source, source.clone()))

    def fetch(self, tensors: Sequence[Tensor]) -> FakeFetch:
        self.busy_until = max(self.now, self.busy_until) + self.step_seconds
        return FakeFetch(self, self.busy_until, tensors)

    def graph_pool(self) -> FakePool:
        return FakePool()

    def capture(self, function: Callable[[], Tensor], pool: object) -> FakeGraph:
        assert isinstance(pool, FakePool)
        assert pool.graphs or not pool.was_used, "the pool was given back with its last graph"
        if not self.captures:
            raise CaptureError("operation not permitted when stream is capturing")
        self.num_captures += 1
        graph = FakeGraph(self, function)
        self._graphs.add(graph)
        pool.graphs.add(graph)
        pool.was_used = True
        return graph

    def replay(self, graph: FakeGraph) -> None:
        self.num_replays += 1
        for other in self._graphs:
            if other is not graph and other.has_output:
                other.output.fill_(float("nan"))

    def synchronize(self) -> None:
        self.wait_until(self.busy_until)

    def peak_memory(self, function: Callable[[], object]) -> int:
        function()
        return 0

    def graph_memory(self, function: Callable[[], Tensor]) -> GraphMemory:
        self.capture(function, self.graph_pool()).replay()
        return GraphMemory(pool=0, each=0)


class FakeFetch:
    def __init__(self, device: FakeDevice, time: float, tensors: Sequence[Tensor]) -> None:
        self._device = device
        self._time = time
        self._tensors = tensors
        self._values = [tensor.clone() for tensor in tensors]

    def wait(self) -> list[NDArray[Any]]:
        self._device.wait_until(self._time)
        for tensor, value in zip(self._tensors, self._values, strict=True):
            assert torch.equal(tensor.nan_to_num(7.0), value.nan_to_num(7.0)), "written before it was fetched"
        return [value.numpy() for value in self._values]


class FakePool:
    """Memory for graphs, for as long as it has any."""

    def __init__(self) -> None:
        self.graphs: WeakSet[FakeGraph] = WeakSet()
        self.was_used = False


class FakeGraph:
    """``output`` is there once it was replayed, and at one place from then on."""

    output: Tensor

    def __init__(self, device: FakeDevice, function: Callable[[], Tensor]) -> None:
        self._device = device
        self._function = function

    @property
    def has_output(self) -> bool:
        return hasattr(self, "output")

    def replay(self) -> None:
        self._device.replay(self)
        output = self._function()
        if self.has_output:
            self.output.copy_(output)
        else:
            self.output = output.clone()
