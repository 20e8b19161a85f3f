"""``join_shards``: the shards of a model find each other, over a store that shard 0 keeps.

The store says who is there; the connections themselves are torch.distributed's: gloo, and NCCL between GPUs.
This module knows no model.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from triolet.errors import JoinError, UsageError
from triolet.runtime.shard_group import ShardGroup
from triolet.runtime.shard_place import ShardPlace

__all__ = ["join_shards"]

c10d: Any = torch.distributed  # its names come from a C module, without types

POLL_SECONDS = 0.05
DIAL_TIMEOUT = timedelta(seconds=1)
NO_TIMEOUT = timedelta(days=3650)
"""For orders: shards wait for the next one as long as nobody asks for anything."""


def join_shards(place: ShardPlace, device: torch.device, on_phase: Callable[[str], None]) -> ShardGroup:
    """Wait until all shards are there. ``on_phase`` is told again and again; what it raises ends the wait.

    Raises JoinError, naming the address and who was missing; UsageError where shards differ in their number.
    """
    deadline = time.monotonic() + place.join_timeout
    fds_before = _open_fds()
    store = _open_store(place, on_phase, deadline)
    store.set(f"shard/{place.index}", str(place.count))
    _wait_for_all(store, place, on_phase, deadline)
    host = place.host if place.listener is not None else _own_address(place)
    timeout = timedelta(seconds=place.step_timeout)
    try:
        control = _gloo(store, "control", place, host, NO_TIMEOUT)
        data = (
            _gloo(store, "data", place, host, timeout)
            if device.type == "cpu"
            else _nccl(store, place, timeout)
        )
    except RuntimeError as error:
        raise JoinError(
            f"tensor parallel: the shards met at {_name(place)} but cannot reach each other: {error}"
        ) from error
    _keep_alive(_open_fds() - fds_before, place.liveness_timeout)
    return ShardGroup(place.index, place.count, control, data, device, store)


def _open_store(place: ShardPlace, on_phase: Callable[[str], None], deadline: float) -> Any:
    if place.listener is not None:
        return c10d.TCPStore(
            place.host, place.port, None, True, wait_for_workers=False, master_listen_fd=place.listener
        )
    while True:
        on_phase(f"looking for shard 0 at {_name(place)}")
        began = time.monotonic()
        try:
            return c10d.TCPStore(
                place.host, place.port, None, False, timeout=DIAL_TIMEOUT, wait_for_workers=False
            )
        except RuntimeError as error:
            if time.monotonic() > deadline:
                raise JoinError(
                    f"tensor parallel: nothing answered at {_name(place)} within {place.join_timeout:g} s "
                    "(--cluster-join-timeout): is the machine with --node-rank 0 started, with the same "
                    "--master-addr and --master-port, and does a firewall let us through?"
                ) from error
            time.sleep(max(0.0, POLL_SECONDS - (time.monotonic() - began)))


def _wait_for_all(store: Any, place: ShardPlace, on_phase: Callable[[str], None], deadline: float) -> None:
    missing = set(range(place.count))
    while True:
        missing = {index for index in missing if not store.check([f"shard/{index}"])}
        if not missing:
            break
        names = ", ".join(map(str, sorted(missing)))
        on_phase(f"waiting for shards {names} of {place.count} at {_name(place)}")
        if time.monotonic() > deadline:
            raise JoinError(
                f"tensor parallel: shards {names} of {place.count} did not come to {_name(place)} within "
                f"{place.join_timeout:g} s (--cluster-join-timeout): is every machine started, with the same "
                "options but for --node-rank?"
            )
        time.sleep(POLL_SECONDS)
    counts = {int(store.get(f"shard/{index}")) for index in range(place.count)}
    if counts != {place.count}:
        raise UsageError(
            f"tensor_parallel_size (--tensor-parallel-size) is {place.count} here, but "
            f"{max(counts - {place.count})} elsewhere; it must be the same on all machines",
            param="tensor_parallel_size",
        )


def _gloo(store: Any, name: str, place: ShardPlace, host: str, timeout: timedelta) -> Any:
    options = c10d.ProcessGroupGloo._Options()
    options._devices = [c10d.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timeout
    prefixed = c10d.PrefixStore(name, store)
    return c10d.ProcessGroupGloo(prefixed, place.index, place.count, options)


def _nccl(store: Any, place: ShardPlace, timeout: timedelta) -> Any:
    if not c10d.is_nccl_available():
        raise JoinError("tensor parallel: this torch has no NCCL, which GPUs need; use --device cpu")
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = timeout
    prefixed = c10d.PrefixStore("data", store)
    return c10d.ProcessGroupNCCL(prefixed, place.index, place.count, options)


def _own_address(place: ShardPlace) -> str:
    """The address of the interface that leads to shard 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((place.host, place.port))
        return str(probe.getsockname()[0])


def _open_fds() -> set[int]:
    return set(map(int, os.listdir("/proc/self/fd")))


def _keep_alive(fds: set[int], liveness_timeout: float) -> None:
    """Have the system notice, on the connections just made, when the other machine is gone."""
    seconds = max(1, round(liveness_timeout / 2))
    for fd in fds:
        with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:  # not all of them are sockets
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 3))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _name(place: ShardPlace) -> str:
    return f"{place.host}:{place.port}"
