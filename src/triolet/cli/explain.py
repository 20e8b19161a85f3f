"""``triolet serve --explain``: what the options amount to, in processes and ports; starts nothing."""

from __future__ import annotations

from collections.abc import Iterator

from triolet.args import ServeArgs
from triolet.launch_shape import LaunchShape

__all__ = ["explain"]

MODES = {
    "single": "one process: HTTP and engine",
    "separate": "HTTP, and one engine in a process of its own",
    "internal": "requests are spread over all ranks",
    "external": "one rank behind a load balancer that is not ours",
    "hybrid": "requests are spread over this machine's ranks, behind a load balancer that is not ours",
    "headless": "engines without HTTP",
    "worker": "a share in a rank whose engine is on another machine",
}


def explain(args: ServeArgs) -> Iterator[str]:
    """The lines for the user: what runs here, where it listens, what it waits for."""
    shape = args.launch_shape()
    yield f"shape: {shape.mode} ({_in_words(shape)})"
    yield f"ranks: {shape.num_ranks} in all; here {_ranks(shape.local_ranks)}"
    yield "processes here:"
    yield from (f"  {line}" for line in _processes(shape))
    yield from _listening(args, shape)
    yield from _elsewhere(args, shape)


def _in_words(shape: LaunchShape) -> str:
    if shape.mode == "single" and not shape.is_one_process:
        return "one engine, which all API servers share"
    return MODES[shape.mode]


def _processes(shape: LaunchShape) -> Iterator[str]:
    workers = shape.tensor_parallel_size // shape.num_nodes_per_rank
    if shape.mode == "worker":
        yield f"{workers} x tensor parallel worker"
        return
    if shape.is_one_process:
        yield "1 x HTTP server with the engine in it"
    elif shape.mode == "headless":
        yield "1 x launcher, which watches the engines"
    elif shape.num_api_servers == 1:
        yield "1 x HTTP server, which watches the engines"
    else:
        yield "1 x launcher, which watches the others"
        yield f"{shape.num_api_servers} x API server, all on one port"
    if not shape.is_one_process:
        yield f"{len(shape.local_ranks)} x engine ({_ranks(shape.local_ranks)})"
    if workers > 1:
        yield f"{workers - 1} x tensor parallel worker for each engine"


def _listening(args: ServeArgs, shape: LaunchShape) -> Iterator[str]:
    if shape.num_api_servers:
        place = args.uds if args.uds is not None else f"{args.host}:{args.port}"
        yield f"HTTP on {place}"
    if shape.remote_ranks:
        yield f"other machines join at {shape.head_host}:{shape.head_port}"
        first, last = shape.head_port + 1, shape.head_port + shape.num_api_servers
        ports = f"port {first}" if first == last else f"ports {first} to {last}"
        yield f"their engines connect to {ports} as well"


def _elsewhere(args: ServeArgs, shape: LaunchShape) -> Iterator[str]:
    if shape.remote_ranks:
        yield f"waits for {_ranks(shape.remote_ranks)} from headless machines"
    if shape.mode == "headless":
        yield f"joins the head at {shape.head_host}:{shape.head_port}"
    if shape.num_nodes_per_rank > 1:
        yield f"tensor parallel processes meet at {args.master_addr}:{args.master_port}"
    if shape.needs_secret:
        yield "needs the same --cluster-secret-file or TRIOLET_CLUSTER_SECRET on every machine"


def _ranks(ranks: range) -> str:
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
