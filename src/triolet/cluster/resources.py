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
    num_workers: int = 1,
    num_cores: int,
    environment: Mapping[str, str],
    root: Path = Path("/"),
) -> tuple[RankResources, ...]:
    """The parts of ``num_ranks`` engines of ``num_workers`` processes each, by local rank.

    Cores are shared out evenly unless ``--num-threads`` is given, which is then of each process. GPUs are
    those that ``CUDA_VISIBLE_DEVICES`` in ``environment`` names, else those of NVIDIA's or AMD's driver under
    ``root``, one for each process; where there are fewer, several engines take the same.
    """
    num_threads = args.num_threads or max(1, num_cores // (num_ranks * num_workers))
    threads = {} if "OMP_NUM_THREADS" in environment else {"OMP_NUM_THREADS": str(num_threads)}
    gpus = () if args.device == "cpu" else _gpus(environment, root)
    if not gpus:
        return (RankResources(num_threads, num_ranks * num_workers, threads),) * num_ranks
    if len(gpus) < num_ranks * num_workers:
        logger.warning("%d engines of %d processes share %d GPUs", num_ranks, num_workers, len(gpus))
    groups = [gpus[first : first + num_workers] for first in range(0, len(gpus), num_workers)]
    groups = [group for group in groups if len(group) == num_workers] or [gpus]
    return tuple(
        RankResources(
            num_threads,
            len(range(rank % len(groups), num_ranks, len(groups))),
            {**threads, "CUDA_VISIBLE_DEVICES": ",".join(groups[rank % len(groups)])},
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
