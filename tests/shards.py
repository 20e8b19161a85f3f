"""Shards of a model as threads: joined by gloo over the loopback, or by nothing but a barrier."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from triolet.runtime.shard_group import ShardGroup
from triolet.runtime.shard_joining import join_shards
from triolet.runtime.shard_place import ShardPlace

__all__ = ["BarrierSum", "make_places", "run_joined", "run_shards"]

T = TypeVar("T")
CPU = torch.device("cpu")
SECONDS = 20.0


class BarrierSum:
    """What adds up the parts of ``count`` threads, in their order."""

    def __init__(self, count: int) -> None:
        self._parts: list[Tensor] = [torch.empty(0)] * count
        self._barrier = threading.Barrier(count, timeout=SECONDS)

    def of(self, index: int) -> Callable[[Tensor], Tensor]:
        """For the thread of shard ``index``."""

        def add_up(x: Tensor) -> Tensor:
            self._parts[index] = x
            self._barrier.wait()
            total = torch.stack(self._parts).sum(dim=0)
            self._barrier.wait()
            return total

        return add_up


def run_shards(count: int, function: Callable[[int], T]) -> list[T]:
    """``function(index)`` of all shards at once; raises what the first of them raises."""
    with ThreadPoolExecutor(count) as threads:
        futures = [threads.submit(function, index) for index in range(count)]
        return [future.result(timeout=4 * SECONDS) for future in futures]


def make_places(
    count: int, *, join_timeout: float = SECONDS, step_timeout: float = SECONDS
) -> list[ShardPlace]:
    """Those of shards that meet on a free port of the loopback."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    return [
        ShardPlace(
            index=index,
            count=count,
            host="127.0.0.1",
            port=port,
            join_timeout=join_timeout,
            step_timeout=step_timeout,
            liveness_timeout=5.0,
            listener=listener.detach() if index == 0 else None,
        )
        for index in range(count)
    ]


def run_joined(count: int, function: Callable[[ShardGroup], T]) -> list[T]:
    """``function(group)`` of all shards, joined for real; groups are closed afterwards."""
    places = make_places(count)

    def run(index: int) -> T:
        group = join_shards(places[index], CPU, lambda phase: None)
        try:
            return function(group)
        finally:
            group.close()

    return run_shards(count, run)
