"""``derive_shape``: which processes an engine consists of, and where, from its options. The one derivation.

A combination that cannot be meant is refused here, before anything starts, by an error that names the flags
and the way out. This module starts nothing and knows no process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from triolet.errors import UsageError

if TYPE_CHECKING:
    from triolet.parallel_args import ParallelArgs

__all__ = ["LaunchMode", "LaunchShape", "derive_shape"]

MAX_PORT = 65535

LaunchMode = Literal["single", "separate", "internal", "external", "hybrid", "headless", "worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """What runs on this machine, and what it works with elsewhere.

    ``mode``: ``single`` is one process with everything, ``separate`` has one engine process, ``internal``
    spreads requests over all ranks, ``external`` is one rank behind somebody else's load balancer, ``hybrid``
    spreads requests over this machine's ranks, ``headless`` is ranks without HTTP, ``worker`` shares in a
    rank whose engine is on another machine. ``is_one_process``: HTTP and engine share one.

    ``local_ranks`` run here; ``served_ranks`` are those that HTTP servers here send requests to. A rank spans
    ``num_nodes_per_rank`` machines, of which this is number ``node_rank_in_rank``, and has
    ``tensor_parallel_size`` processes. ``head_host`` and ``head_port`` are where the machines of an internal
    or headless shape meet.
    """

    mode: LaunchMode
    num_api_servers: int
    num_ranks: int
    is_one_process: bool
    local_ranks: range
    served_ranks: range
    tensor_parallel_size: int
    num_nodes_per_rank: int
    node_rank_in_rank: int
    head_host: str
    head_port: int

    @property
    def remote_ranks(self) -> range:
        """Those served from here that run elsewhere. Ranks here come first, so they are the rest."""
        return self.served_ranks[len(self.local_ranks) :]

    @property
    def num_local_workers(self) -> int:
        """Processes that compute on this machine."""
        return len(self.local_ranks) * self.tensor_parallel_size // self.num_nodes_per_rank

    @property
    def needs_secret(self) -> bool:
        """Whether other machines are to be talked to."""
        return self.mode == "headless" or len(self.remote_ranks) > 0


def derive_shape(
    args: ParallelArgs, *, num_api_servers: int | None = None, is_headless: bool = False
) -> LaunchShape:
    """The shape that the options ask for. Raises UsageError, naming the flags and the remedy."""
    _check_modes(args, num_api_servers, is_headless)
    num_nodes_per_rank, node_rank_in_rank = _nodes_of_a_rank(args)
    if node_rank_in_rank > 0:
        mode: LaunchMode = "worker"
        if not is_headless:
            raise _wrong(
                f"--node-rank {args.node_rank} only shares in a rank whose engine is on another machine: "
                "add --headless",
                "node_rank",
            )
    else:
        mode = _mode(args, is_headless)
    local = _local_ranks(args, mode)
    if mode == "hybrid" and len(local) == args.data_parallel_size:
        mode = "internal"  # there are no other machines
    has_http = mode not in ("headless", "worker")
    served = range(args.data_parallel_size) if mode == "internal" else local
    num_api_servers = (num_api_servers or 1) if has_http else 0
    is_one_process = mode in ("single", "external") and num_api_servers == 1 and not args.separate_engine
    shape = LaunchShape(
        mode=mode,
        num_api_servers=num_api_servers,
        is_one_process=is_one_process,
        num_ranks=args.data_parallel_size,
        local_ranks=local,
        served_ranks=served if has_http else range(0),
        tensor_parallel_size=args.tensor_parallel_size,
        num_nodes_per_rank=num_nodes_per_rank,
        node_rank_in_rank=node_rank_in_rank,
        head_host=args.data_parallel_address or (args.master_addr if args.nnodes > 1 else "127.0.0.1"),
        head_port=args.data_parallel_rpc_port,
    )
    _check_ports(shape)
    _check_master(args, shape)
    return shape


def _check_master(args: ParallelArgs, shape: LaunchShape) -> None:
    """That the shards of each rank over several machines can meet, and that all addresses can be names."""
    for flag, host in (("data_parallel_address", shape.head_host), ("master_addr", args.master_addr)):
        try:
            host.encode("idna")
        except UnicodeError as exc:
            raise _wrong(f"{host!r} is no address of a machine: {exc}", flag) from exc
    if shape.num_nodes_per_rank == 1:
        return
    last = args.master_port + shape.num_ranks - 1
    if last > MAX_PORT:
        raise _wrong(
            f"--master-port {args.master_port} leaves no room: the ports up to {last} are needed, one for "
            f"each rank; choose {MAX_PORT - shape.num_ranks + 1} or less",
            "master_port",
        )
    if shape.num_ranks > 1 and shape.mode in ("internal", "headless") and args.data_parallel_address is None:
        raise _wrong(
            f"each of {shape.num_ranks} ranks over {shape.num_nodes_per_rank} machines meets on the first of "
            "its own: give that one's address as --master-addr on its machines, and the head's as "
            "--data-parallel-address on all",
            "data_parallel_address",
        )


def _check_ports(shape: LaunchShape) -> None:
    """That there are as many as other machines dial."""
    last = shape.head_port + shape.num_api_servers
    if shape.remote_ranks and last > MAX_PORT:
        raise _wrong(
            f"--data-parallel-rpc-port {shape.head_port} leaves no room: the ports up to {last} are needed, "
            f"one more for each API server; choose {MAX_PORT - shape.num_api_servers} or less",
            "data_parallel_rpc_port",
        )


def _check_modes(args: ParallelArgs, num_api_servers: int | None, is_headless: bool) -> None:
    """That no two modes are asked for at once."""
    is_external = args.data_parallel_external_lb or args.data_parallel_rank is not None
    external = "--data-parallel-external-lb" if args.data_parallel_external_lb else "--data-parallel-rank"
    hybrid = "--data-parallel-hybrid-lb" if args.data_parallel_hybrid_lb else None
    count = None if num_api_servers is None else f"--api-server-count {num_api_servers}"
    start = None if args.data_parallel_start_rank is None else "--data-parallel-start-rank"
    alone = external if is_external else hybrid
    contradictions = (
        (
            is_headless and num_api_servers,
            f"{count} and --headless exclude each other, since headless machines have no API servers: remove "
            "one of them",
            "api_server_count",
        ),
        (
            num_api_servers == 0 and not is_headless,
            f"{count} is a machine without HTTP: say --headless, or give 1 or more",
            "api_server_count",
        ),
        (
            is_external and hybrid,
            f"{external} and {hybrid} exclude each other: keep the first for one server per rank, the second "
            "for one per machine",
            "data_parallel_hybrid_lb",
        ),
        (
            is_headless and alone,
            f"{alone} and --headless exclude each other, since each server behind an external load balancer "
            "has its own HTTP: remove one of them",
            "headless",
        ),
        (
            is_external and start,
            f"{external} and {start} exclude each other: keep the first for one server per rank, the second "
            "for the ranks of a machine",
            "data_parallel_start_rank",
        ),
        (
            alone and args.data_parallel_size == 1,
            f"{alone} needs --data-parallel-size above 1: give the number of ranks in all",
            "data_parallel_size",
        ),
    )
    for is_contradiction, message, param in contradictions:
        if is_contradiction:
            raise _wrong(message, param)


def _nodes_of_a_rank(args: ParallelArgs) -> tuple[int, int]:
    """Over how many machines a rank spreads, and which of them this is."""
    if not 0 <= args.node_rank < args.nnodes:
        raise _wrong(
            f"--node-rank must be in [0, {args.nnodes - 1}] with --nnodes {args.nnodes}, got "
            f"{args.node_rank}",
            "node_rank",
        )
    if args.nnodes == 1:
        return 1, 0
    world = args.data_parallel_size * args.tensor_parallel_size
    if world % args.nnodes:
        raise _wrong(
            f"--data-parallel-size x --tensor-parallel-size ({world} processes) cannot be divided over "
            f"--nnodes {args.nnodes}: choose a multiple of the number of machines",
            "nnodes",
        )
    per_node = world // args.nnodes
    if per_node >= args.tensor_parallel_size:
        if per_node % args.tensor_parallel_size:
            raise _uneven(args, per_node)
        return 1, 0
    if args.tensor_parallel_size % per_node:
        raise _uneven(args, per_node)
    nodes = args.tensor_parallel_size // per_node
    return nodes, args.node_rank % nodes


def _uneven(args: ParallelArgs, per_node: int) -> UsageError:
    return _wrong(
        f"--tensor-parallel-size {args.tensor_parallel_size} does not fit evenly into machines of {per_node} "
        "processes: change it, --data-parallel-size or --nnodes",
        "tensor_parallel_size",
    )


def _mode(args: ParallelArgs, is_headless: bool) -> LaunchMode:
    if is_headless:
        return "headless"
    if args.data_parallel_external_lb or args.data_parallel_rank is not None:
        return "external"
    if args.data_parallel_hybrid_lb or args.data_parallel_start_rank is not None:
        return "hybrid"
    if args.data_parallel_size > 1 or args.data_parallel_size_local == 0:
        return "internal"
    return "separate" if args.separate_engine else "single"


def _local_ranks(args: ParallelArgs, mode: LaunchMode) -> range:
    """The ranks on this machine, checked against their number in all."""
    if mode == "external":
        return _external_rank(args)
    first, num_local = args.data_parallel_start_rank, args.data_parallel_size_local
    if args.nnodes > 1:
        first = _first_rank_of_node(args) if first is None else first
        num_local = max(args.data_parallel_size // args.nnodes, 1) if num_local is None else num_local
    first = first or 0
    if first > 0 and mode == "internal":
        raise _wrong(
            f"machine --node-rank {args.node_rank} of an internal load balancer has no HTTP server: add "
            "--headless, or --data-parallel-hybrid-lb for a server on each machine",
            "node_rank",
        )
    if not 0 <= first < args.data_parallel_size:
        raise _wrong(
            f"--data-parallel-start-rank must be in [0, {args.data_parallel_size - 1}] with "
            f"--data-parallel-size {args.data_parallel_size}, got {first}",
            "data_parallel_start_rank",
        )
    if mode == "hybrid" and num_local is None:
        flag = "--data-parallel-hybrid-lb" if args.data_parallel_hybrid_lb else "--data-parallel-start-rank"
        raise _wrong(
            f"{flag} needs --data-parallel-size-local: give the number of ranks on this machine",
            "data_parallel_size_local",
        )
    return _ranks_from(args, first, num_local, lowest=0 if mode == "internal" else 1)


def _ranks_from(args: ParallelArgs, first: int, num_local: int | None, *, lowest: int) -> range:
    size = args.data_parallel_size
    num_local = size - first if num_local is None else num_local
    if not lowest <= num_local <= size - first:
        start = f" and first rank {first}" if first else ""
        raise _wrong(
            f"--data-parallel-size-local must be in [{lowest}, {size - first}] with --data-parallel-size "
            f"{size}{start}, got {num_local}",
            "data_parallel_size_local",
        )
    return range(first, first + num_local)


def _first_rank_of_node(args: ParallelArgs) -> int:
    per_node = args.data_parallel_size * args.tensor_parallel_size // args.nnodes
    return args.node_rank * per_node // args.tensor_parallel_size


def _external_rank(args: ParallelArgs) -> range:
    rank = args.data_parallel_rank
    if rank is None and args.nnodes > 1:
        rank = _first_rank_of_node(args)
    if rank is None:
        raise _wrong(
            "--data-parallel-external-lb needs --data-parallel-rank: give the rank that this server is",
            "data_parallel_rank",
        )
    if not 0 <= rank < args.data_parallel_size:
        raise _wrong(
            f"--data-parallel-rank must be in [0, {args.data_parallel_size - 1}] with --data-parallel-size "
            f"{args.data_parallel_size}, got {rank}",
            "data_parallel_rank",
        )
    if args.data_parallel_size_local not in (None, 1):
        raise _wrong(
            f"--data-parallel-size-local {args.data_parallel_size_local} contradicts --data-parallel-rank, "
            "by which this server is one rank: leave it out, or say --data-parallel-hybrid-lb",
            "data_parallel_size_local",
        )
    return range(rank, rank + 1)


def _wrong(message: str, param: str) -> UsageError:
    return UsageError(message, param=param)
