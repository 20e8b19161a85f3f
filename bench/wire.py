"""Cost of messages between processes: making and reading them, and a round trip to another process.

    python -m bench.wire
    python -m bench.wire --round-trips 5000 --json out.json

Round trips go over a Unix socket to a process that sends each message back. Making and reading is the best of
several repeats, round trips are percentiles.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import timeit
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import anyio
from sniffio import current_async_library

from bench.report import percentile, print_table, write_json
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, dial, serve_links
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Add, Message, Outputs, Phase, decode_message, encode_message
from triolet.cluster.transport import Address, SocketTransport
from triolet.request import Request, TokenLogprobs, TokenOutput

__all__ = ["MESSAGES", "main", "measure_message", "measure_round_trips"]

LOGPROBS = TokenLogprobs(tuple(range(6)), tuple(-float(rank) for rank in range(6)), 1)
MESSAGES: Mapping[str, Message] = {
    "64 tokens": Outputs(tuple(TokenOutput(request_id=row, token_ids=(7 * row,)) for row in range(64))),
    "64 tokens, 5 logprobs": Outputs(
        tuple(TokenOutput(request_id=row, token_ids=(row,), logprobs=(LOGPROBS,)) for row in range(64))
    ),
    "request of 1000 tokens": Add(
        Request(request_id=1, prompt_token_ids=tuple(range(1000)), max_tokens=100, seed=1)
    ),
    "small": Phase("x"),
}
NUM_REPEATS = 5
NUM_WARM_UPS = 100
START_TIMEOUT = 30.0

_TIMES = ("message", "bytes", "encode us", "decode us", "both us")
_TRIPS = ("loop", "message", "p50 us", "p99 us", "messages/s")


def measure_message(name: str, num_calls: int) -> dict[str, Any]:
    """Microseconds to make the message and to read it, and its size."""
    message = MESSAGES[name]
    payload = encode_message(message)
    encode, decode = (
        min(timeit.repeat(call, number=num_calls, repeat=NUM_REPEATS)) / num_calls * 1e6
        for call in (lambda: encode_message(message), lambda: decode_message(payload))
    )
    row = {"message": name, "bytes": len(payload)}
    return row | {"encode us": encode, "decode us": decode, "both us": encode + decode}


def measure_round_trips(backend: str, num_trips: int) -> list[dict[str, Any]]:
    """Microseconds there and back, and messages a second through a process that runs ``backend`` as we do."""
    secret, name = os.urandom(32), f"triolet-bench-{os.urandom(8).hex()}"
    command = [sys.executable, "-m", "bench.wire", "--echo", name, "--backend", backend]
    with subprocess.Popen(command, env=os.environ | {"TRIOLET_BENCH_SECRET": secret.hex()}) as child:
        try:
            return anyio.run(_measure_links, name, secret, num_trips, backend=backend)
        finally:
            child.terminate()


async def _measure_links(name: str, secret: bytes, num_trips: int) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = []
    listener = await SocketTransport().listen(Address(name=name))
    with anyio.fail_after(START_TIMEOUT) as starting:

        async def measure(peer: Peer, link: Link) -> None:
            starting.deadline = inf
            for kind in ("64 tokens", "small"):
                times = await _round_trips(link, MESSAGES[kind], num_trips)
                rate = await _through(link, MESSAGES[kind], num_trips)
                trips = {"p50 us": percentile(times, 50) * 1e6, "p99 us": percentile(times, 99) * 1e6}
                table.append({"loop": current_async_library(), "message": kind, **trips, "messages/s": rate})
            starting.cancel()

        await serve_links(listener, measure, Credentials(secret, os.urandom))
    await listener.aclose()
    return table


async def _round_trips(link: Link, message: Message, num_trips: int) -> list[float]:
    times = []
    for _ in range(NUM_WARM_UPS + num_trips):
        started = time.perf_counter()
        link.post(message)
        await link.receive()
        times.append(time.perf_counter() - started)
    return times[NUM_WARM_UPS:]


async def _through(link: Link, message: Message, num_messages: int) -> float:
    """Messages a second, posted at once, made and read on both sides."""
    started = time.perf_counter()
    for _ in range(num_messages):
        link.post(message)
    for _ in range(num_messages):
        await link.receive()
    return num_messages / (time.perf_counter() - started)


async def _echo(name: str, secret: bytes) -> None:
    """Send everything back until the other side is gone."""
    credentials = Credentials(secret, os.urandom)
    link = await dial(SocketTransport(), Address(name=name), Peer(Role.ENGINE, 0), credentials, timeout=10)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.run)
        with suppress(LinkClosedError):
            while True:
                link.post(await link.receive())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print both tables."""
    options = _parse(argv)
    if options.echo:
        secret = bytes.fromhex(os.environ["TRIOLET_BENCH_SECRET"])
        anyio.run(_echo, options.echo, secret, backend=options.backend)
        return 0
    messages = [measure_message(name, options.calls) for name in MESSAGES]
    print_table(messages, _TIMES)
    trips = [row for loop in ("asyncio", "trio") for row in measure_round_trips(loop, options.round_trips)]
    print_table(trips, _TRIPS)
    if options.json:
        write_json(options.json, [*messages, *trips])
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Cost of messages between processes.")
    parser.add_argument("--calls", type=int, default=2000, help="of each repeat")
    parser.add_argument("--round-trips", type=int, default=2000, help="of each message")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--echo", metavar="NAME", help="be the other process")
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio", help="its event loop")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
