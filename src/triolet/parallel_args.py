"""``ParallelArgs``: the options that say over how many processes and machines an engine is spread.

What they amount to is derived in one place, :mod:`triolet.launch_shape`. This module knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from triolet.option_fields import check_at_least, check_not_negative, option, usage_error

__all__ = ["ParallelArgs"]

MAX_NUM_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelArgs:
    """Options of engines in several processes, the base of :class:`triolet.args.EngineArgs`."""

    separate_engine: bool = option(
        False, "Run the engine in a process of its own, which is watched and restarted.", group="parallel"
    )
    data_parallel_size: int = option(
        1, "Engines that hold the whole model each and share the requests: ranks 0 to N-1.",
        group="parallel", metavar="N",
    )  # fmt: skip
    data_parallel_size_local: int | None = option(
        None, "How many of them run on this machine; all that are not elsewhere if not given.",
        group="parallel", metavar="N",
    )  # fmt: skip
    data_parallel_start_rank: int | None = option(
        None, "First of the ranks on this machine.", group="parallel", metavar="RANK"
    )
    data_parallel_rank: int | None = option(
        None, "The one rank that this server is, behind a load balancer that is not ours.",
        group="parallel", metavar="RANK",
    )  # fmt: skip
    data_parallel_external_lb: bool = option(
        False, "Each rank is a server of its own, behind a load balancer that is not ours; this one is "
        "--data-parallel-rank.",
        group="parallel",
    )  # fmt: skip
    data_parallel_hybrid_lb: bool = option(
        False, "Each machine is a server over its own ranks, behind a load balancer that is not ours.",
        group="parallel",
    )  # fmt: skip
    data_parallel_address: str | None = option(
        None, "Address of the head, the machine with the HTTP server; --master-addr where there are several "
        "nodes, else 127.0.0.1.",
        group="parallel", metavar="HOST",
    )  # fmt: skip
    data_parallel_rpc_port: int = option(
        29550, "Port on which the head hears of engines on other machines; API server i of several hears "
        "of them on the port i+1 higher.",
        group="parallel",
    )  # fmt: skip
    tensor_parallel_size: int = option(
        1, "Processes that share the layers of each rank.", group="parallel", metavar="N"
    )
    nnodes: int = option(1, "Machines in all.", group="parallel", metavar="N")
    node_rank: int = option(0, "Number of this machine, 0 to nnodes-1.", group="parallel", metavar="N")
    master_addr: str = option(
        "127.0.0.1", "Address of the first machine of a tensor parallel rank, where its processes meet.",
        group="parallel", metavar="HOST",
    )  # fmt: skip
    master_port: int = option(29501, "Port there.", group="parallel")
    cluster_secret_file: Path | None = option(
        None, "File with the secret that machines prove to each other; TRIOLET_CLUSTER_SECRET in the "
        "environment if not given.",
        group="parallel", metavar="FILE",
    )  # fmt: skip
    cluster_join_timeout: float = option(
        300.0, "Seconds that the parts of a cluster wait for each other at the start.", group="parallel"
    )
    liveness_timeout: float = option(
        5.0, "Seconds of silence after which another machine counts as lost.", group="parallel"
    )
    engine_stall_timeout: float = option(
        120.0, "Seconds without progress after which an engine process is killed and restarted.",
        group="parallel",
    )  # fmt: skip
    engine_load_timeout: float = option(
        1800.0, "Seconds that an engine process may spend in one phase of loading; then it is killed and "
        "started again.", group="parallel",
    )  # fmt: skip
    engine_restart_budget: int = option(
        5, "Most restarts of an engine process in ten minutes; one more ends the server.", group="parallel"
    )

    def _check_parallel(self) -> None:
        check_at_least(self, 1, ("data_parallel_size", "tensor_parallel_size", "nnodes"))
        check_at_least(self, 0, ("engine_restart_budget", "node_rank"))
        for name in ("data_parallel_size", "tensor_parallel_size", "nnodes"):
            if getattr(self, name) > MAX_NUM_RANKS:
                raise usage_error(self, name, f"must be {MAX_NUM_RANKS} or less")
        for name in ("data_parallel_rpc_port", "master_port"):
            if not 1 <= getattr(self, name) <= 65535:
                raise usage_error(self, name, "must be in [1, 65535]")
        names = ("cluster_join_timeout", "liveness_timeout", "engine_stall_timeout", "engine_load_timeout")
        check_not_negative(self, names)
        for name in names:
            if getattr(self, name) == 0:
                raise usage_error(self, name, "must be more than 0")
