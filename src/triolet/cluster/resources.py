"""What each of several engines on one machine gets of its cores, its memory and its GPUs.

This module knows no torch: the parent of the engines loads none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from triolet.args import EngineArgs

__all__ = ["RankResources", "divide_resources"]

logger = logging.getLogger("triolet.cluster")


@dataclass(frozen=True, slots=True)
class RankResources:
    """One engine's part.

    ``num_sharing``: so many engines, this one among them, share the memory of its device. ``environment`` is
    what its process is started with besides ours.
    """

    num_threads: int
    num_sharing: int
    environment: Mapping[str, str]


def divide_resources(
    args: EngineArgs,
    num_ranks: int,
    *,
    num_cores: int,
    environment: Mapping[str, str],
    root: Path = Path("/"),
) -> tuple[RankResources, ...]:
    """The parts of ``num_ranks`` engines, by local rank.

    Cores are shared out evenly unless ``--num-threads`` is given, which is then of each engine. GPUs are
    those that ``CUDA_VISIBLE_DEVICES`` in ``environment`` names, else those of NVIDIA's or AMD's driver under
    ``root``; where there are fewer than engines, several engines take one.
    """
    num_threads = args.num_threads or max(1, num_cores // num_ranks)
    threads = {} if "OMP_NUM_THREADS" in environment else {"OMP_NUM_THREADS": str(num_threads)}
    devices = () if args.device == "cpu" else _gpus(environment, root)
    if not devices:
        return (RankResources(num_threads, num_ranks, threads),) * num_ranks
    if len(devices) < num_ranks:
        logger.warning("%d engines share %d GPUs", num_ranks, len(devices))
    return tuple(
        RankResources(
            num_threads,
            len(range(rank % len(devices), num_ranks, len(devices))),
            {**threads, "CUDA_VISIBLE_DEVICES": devices[rank % len(devices)]},
        )
        for rank in range(num_ranks)
    )


def _gpus(environment: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """The GPUs that may be used, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip())
    num_nvidia = len(list(root.glob("proc/driver/nvidia/gpus/*")))
    return tuple(str(index) for index in range(num_nvidia or _num_amd_gpus(root)))


def _num_amd_gpus(root: Path) -> int:
    """Nodes of the kernel's ``kfd`` topology that compute; processors are nodes too, without SIMD units."""
    return sum(
        "simd_count 0\n" not in properties.read_text()
        for properties in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    )
