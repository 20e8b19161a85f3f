"""Which configurations of the stored table some cases use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from triolet_kernels.gpu.configurations import Configuration, Configurations
from triolet_kernels.gpu.launch import GpuDevice

Cases = Callable[[GpuDevice], Iterator[tuple[str, Callable[[], object]]]]


def configurations_used(architecture: str, cases: Cases) -> set[tuple[str, str]]:
    """Kernel and class of shapes of each."""
    started: list[Configuration] = []

    def record(
        kernel: Any, grid: Sequence[int], configuration: Configuration, *arguments: Any, **constants: Any
    ) -> None:
        assert all(size > 0 for size in grid)
        started.append(configuration)

    table = Configurations.load(architecture)
    for _, start in cases(GpuDevice(configurations=table, num_multiprocessors=100, launch=record)):
        start()
    return {key for key in table if any(table.find(*key) is one for one in started)}


def kernels_of(architecture: str, names: Collection[str]) -> set[tuple[str, str]]:
    """What the table has for kernels of these names."""
    return {key for key in Configurations.load(architecture) if key[0] in names}
