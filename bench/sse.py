"""What HTTP costs: CPU of the server for an event of a stream, and for a request, on either event loop.

    python -m bench.sse
    python -m bench.sse --streams 64 --tokens 300 --json out.json

There are three processes: this one is the client, the engine is another, and only what the third uses is
counted, as the system tells it: HTTP and text, its link to the engine, its calls of the kernel. The engine
computes nothing and takes steps of 10 ms, so that the server has done with one before the next ends: every
token is an event then, where a busy server would write several as one and look cheaper for it.
``events/token`` tells whether that held. Requests of one token tell what a request costs, each on a new
connection and, as most clients have it, on one that is kept; long streams tell what an event adds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.client import Address, Timed, stream_request
from bench.kills import engine_pids
from bench.online import served_model
from bench.prompts import make_prompt
from bench.report import median_rows, print_table, write_json
from bench.scaling import processor_seconds
from bench.servers import RunningServer, Server, free_port, running

__all__ = ["BACKENDS", "main", "measure"]

BACKENDS = ("asyncio", "trio")
TIMEOUT = 120.0

_COLUMNS = (
    "loop", "us/event", "us/request", "us/kept", "events/token", "num_events", "num_requests",
)  # fmt: skip


def measure(loop: str, child: RunningServer, options: argparse.Namespace) -> dict[str, Any]:
    """A row: microseconds of CPU for an event and for a request."""
    url = child.server.url
    model = served_model(url)

    def ask(num_requests: int, num_tokens: int, *, is_kept: bool = False) -> tuple[int, float]:
        """How many events came, and the seconds of CPU."""
        before = _http_seconds(child)
        answers = asyncio.run(_ask(url, model, num_requests, num_tokens, options, is_kept=is_kept))
        return sum(map(_num_events, answers)), _http_seconds(child) - before

    ask(options.streams, 4)  # to warm up
    num_short, short = ask(options.requests, 1)
    num_kept, kept = ask(options.requests, 1, is_kept=True)
    num_long, long = ask(options.streams, options.tokens)
    # Two equations: seconds are so much for each request and so much for each event.
    per_event = (long - short * options.streams / options.requests) / (
        num_long - num_short * options.streams / options.requests
    )
    return {
        "loop": loop, "us/event": per_event * 1e6,
        "us/request": 1e6 * (short - per_event * num_short) / options.requests,
        "us/kept": 1e6 * (kept - per_event * num_kept) / options.requests,
        "events/token": num_long / (options.streams * options.tokens),
        "num_events": num_long, "num_requests": options.requests,
    }  # fmt: skip


def _http_seconds(child: RunningServer) -> float:
    used = processor_seconds(child.pid)
    return sum(used.values()) - sum(used[pid] for pid in engine_pids(child.pid))


async def _ask(
    url: str,
    model: str,
    num_requests: int,
    num_tokens: int,
    options: argparse.Namespace,
    *,
    is_kept: bool = False,
) -> list[Timed]:
    """The answers to so many requests, as many at a time as there are streams."""
    address = Address.parse(url)
    connections: list[asyncio.Transport] | None = [] if is_kept else None
    body = {"model": model, "max_tokens": num_tokens, "ignore_eos": True}
    are_free = asyncio.Semaphore(options.streams)

    async def ask(index: int) -> Timed:
        async with are_free:
            prompt = make_prompt(index, options.prompt_words)
            chat = body | {"messages": [{"role": "user", "content": prompt}]}
            return await stream_request(address, "/chat/completions", chat, TIMEOUT, connections)

    answers = await asyncio.gather(*map(ask, range(num_requests)))
    for connection in connections or ():
        connection.abort()
    return answers


def _num_events(answer: Timed) -> int:
    """Those with text; a gap lies between each two of them."""
    return 1 + len(answer.gaps)


def _server(loop: str, model: str, num_streams: int) -> Server:
    port = free_port()
    command = (
        sys.executable, "-m", "bench.scaling", "--serve", "steady", "--", model, "--port", str(port),
        "--max-num-seqs", str(num_streams), "--log-level", "warning", "--separate-engine", "--backend", loop,
    )  # fmt: skip
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server("triolet", command, port, "/ready", environment, ready_line=" is ready at ")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    options = _parse(argv)
    rows = []
    with TemporaryDirectory() as folder:
        for loop in options.backends:
            server = _server(loop, options.model, options.streams)
            with running(server, log=Path(folder) / "log") as child:
                rows += [measure(loop, child, options) for _ in range(options.rounds)]
    medians = median_rows(rows, ["loop"])
    print_table(medians, _COLUMNS)
    if options.json:
        write_json(options.json, medians, streams=options.streams, tokens=options.tokens)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="CPU of the server for an event and for a request.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="whose tokenizer is used")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--rounds", type=int, default=3, help="of each event loop")
    parser.add_argument("--streams", type=int, default=64, help="at a time")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--requests", type=int, default=320, help="of one token")
    parser.add_argument("--prompt-words", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the rows here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
