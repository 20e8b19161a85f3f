"""``Device``: what the runner asks of a device that computes beside the host.

Work is given to it and done in the order in which it was given; the host waits nowhere but in
:meth:`Fetch.wait` and :meth:`Device.synchronize`. :mod:`triolet.runtime.cuda` has the real one, the tests one
with a time of its own. This module knows nothing of models, plans or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CaptureError", "Device", "Fetch", "Graph", "GraphMemory", "send_together"]

ALIGNMENT = 16
"""Bytes: where an array in a parcel begins, so that any kernel may read it in whole words."""


class CaptureError(Exception):
    """Work could not be captured as a graph; it can be done without."""


class Fetch(Protocol):
    """Values on their way to the host."""

    def wait(self) -> list[NDArray[Any]]:
        """The values, once they and all that they depend on are there. Raises what the device failed with."""
        ...


class Graph(Protocol):
    """Captured work, to be done again over whatever the tensors that it reads hold by then."""

    output: Tensor

    def replay(self) -> None:
        """Have it done once more; ``output`` is written anew."""
        ...


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Bytes of the device that graphs take: a ``pool`` that they share, and ``each`` of them beside it."""

    pool: int
    each: int


class Device(Protocol):
    """A device, and the one order in which work is done there."""

    torch_device: torch.device

    def pinned(self, num_bytes: int) -> Tensor:
        """Bytes on the host, uint8, that are copied to the device without the host."""
        ...

    def upload(self, source: Tensor, target: Tensor) -> None:
        """Copy pinned bytes to a tensor on the device, after what was given before. ``source`` may be let go
        of, not written."""
        ...

    def fetch(self, tensors: Sequence[Tensor]) -> Fetch:
        """Copy tensors to the host, after what was given before and beside what is given after it.

        What is given later must not write them.
        """
        ...

    def graph_pool(self) -> object:
        """Memory for graphs to share. Once it had graphs and has none left, it is of no more use."""
        ...

    def capture(self, function: Callable[[], Tensor], pool: object) -> Graph:
        """Note what ``function`` does, which may be done, too. An output is good until another graph of its
        ``pool`` is replayed. Raises :class:`CaptureError`."""
        ...

    def synchronize(self) -> None:
        """Wait for all that was given."""
        ...

    def peak_memory(self, function: Callable[[], object]) -> int:
        """Bytes of the device that ``function`` had, at most, beside what was there before."""
        ...

    def graph_memory(self, function: Callable[[], Tensor]) -> GraphMemory:
        """What graphs of ``function`` take, of which some are captured and given back. Raises
        :class:`CaptureError`."""
        ...


def send_together(
    device: Device, arrays: Sequence[NDArray[Any]], target: Tensor | None = None
) -> list[Tensor]:
    """The arrays as tensors on the device, with one copy; they lie one after the other in ``target``.

    Without a ``target``, uint8, new memory is taken. Arrays of the same shapes lie at the same places.
    """
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    source = device.pinned(max(size, ALIGNMENT))
    packed = source.numpy()
    if target is None:
        target = torch.empty(len(source), dtype=torch.uint8, device=device.torch_device)
    for start, array in zip(starts, arrays, strict=True):
        packed[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    device.upload(source, target[: len(source)])
    return [
        target[start : start + array.nbytes].view(_torch_dtype(array)).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def _torch_dtype(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
