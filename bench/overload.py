"""Far more work than a server can do: what becomes of the requests that it takes, and of those it refuses.

    python -m bench.overload --json bench/results/overload-smollm2.json

First the batch is kept full by as many clients as there are slots: that tells what the server can do, and
how long a request takes then. Then requests come at many times that rate, whatever becomes of them. Last, the
clients of the first part come again at once. The queue is short, so that what is taken is soon answered.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.client import BenchError
from bench.offer import Answer, Offerer, arrivals
from bench.online import served_model
from bench.prompts import make_prompt
from bench.report import busy_cores, busy_seconds, percentile, print_table, write_json
from bench.servers import RunningServer, Server, free_port, running

__all__ = ["main", "summary"]

MEMORY_SECONDS = 0.5
LONGEST = 1.5
"""Times the mean length of an answer."""
TOKENS_PER_WORD = 4
SPARE_BLOCKS = 2
"""For each slot, beside those that its longest request needs: so few that all of them are soon in use, and
memory tells of other things."""
SLOTS_FOR_WAITING = 8
"""Slots for each request that may wait, which it then does for about an eighth of an answer's time."""
BLOCK_SIZE = 16
_COLUMNS = (
    "part", "offered/s", "accepted", "refused", "others", "latency_p50", "latency_p99", "x_full_p99",
    "ttft_p50", "ttft_p99", "inter_token_p50", "inter_token_p99", "refusal_p50_ms", "refusal_p99_ms",
    "refusal_max_ms", "server_cpu", "loop_cpu", "client_cpu", "others_cpu", "rss_mib",
)  # fmt: skip


def summary(part: str, answers: Sequence[Answer], seconds: float) -> dict[str, Any]:
    """A row. ``others`` were neither accepted to the end nor refused with a whole number in Retry-After."""
    accepted = [one for one in answers if one.is_accepted and one.is_whole]
    refused = [one for one in answers if one.status == 429 and (one.retry_after or "").isdigit()]
    latencies = [one.latency for one in accepted]
    refusals = [1e3 * one.latency for one in refused]
    return {
        "part": part,
        "offered/s": len(answers) / seconds,
        "accepted": len(accepted),
        "refused": len(refused),
        "others": len(answers) - len(accepted) - len(refused),
        "latency_p50": percentile(latencies, 50),
        "latency_p99": percentile(latencies, 99),
        "ttft_p50": percentile([one.time_to_first_token for one in accepted], 50),
        "ttft_p99": percentile([one.time_to_first_token for one in accepted], 99),
        "inter_token_p50": percentile([gap for one in accepted for gap in one.gaps], 50),
        "inter_token_p99": percentile([gap for one in accepted for gap in one.gaps], 99),
        "refusal_p50_ms": percentile(refusals, 50),
        "refusal_p99_ms": percentile(refusals, 99),
        "refusal_max_ms": max(refusals, default=0.0),
    }


async def _measure(child: RunningServer, model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    async with Offerer(child.server.url, "/completions") as offerer:
        return await _measure_with(offerer, child, model, options)


async def _measure_with(
    offerer: Offerer, child: RunningServer, model: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    requests = map(offerer.encode, _bodies(model, options))

    async def keep_full(part: str) -> dict[str, Any]:
        some = list(islice(requests, options.levelling * options.slots))
        spent = _Spending(child)
        answers = await offerer.ask_in_turn(options.slots, some)
        return summary(part, answers, spent.seconds) | spent.rates() | {"rss_mib": _mebibytes(child)}

    await offerer.ask_in_turn(options.slots, list(islice(requests, options.slots)))  # to warm up
    rows = [await keep_full("full")]
    if rows[0]["accepted"] < options.levelling * options.slots:
        raise BenchError(f"what the server can do is not known: {rows[0]}")
    times = list(arrivals(options.factor * rows[0]["offered/s"], options.seconds, options.seed))
    many = list(islice(requests, len(times)))
    memory: list[float] = []
    watch = asyncio.create_task(_watch_memory(child, memory))
    spent = _Spending(child)
    answers = await offerer.ask_at(times, many)
    rows.append(summary("overload", answers, options.seconds) | spent.rates())
    watch.cancel()
    rows[-1] |= {"rss_mib": max(memory), "rss_all": memory}
    rows.append(await keep_full("after"))
    return [row | {"x_full_p99": row["latency_p99"] / rows[0]["latency_p99"]} for row in rows]


class _Spending:
    """What server and client take of the CPUs from here on, as both are on the same machine."""

    def __init__(self, child: RunningServer) -> None:
        self._child = child
        self._began = time.perf_counter()
        self._before = self._now()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def rates(self) -> dict[str, float]:
        """CPU seconds for each second: of the whole server, its event loop, this client, and all others."""
        spent = {name: (now - self._before[name]) / self.seconds for name, now in self._now().items()}
        all_cpu = spent.pop("all_cpu")
        return spent | {"others_cpu": max(0.0, all_cpu - spent["server_cpu"] - spent["client_cpu"])}

    def _now(self) -> dict[str, float]:
        return {
            "server_cpu": self._child.cpu_seconds(),
            "loop_cpu": self._child.main_thread_seconds(),
            "client_cpu": time.process_time(),
            "all_cpu": busy_seconds(),
        }


async def _watch_memory(child: RunningServer, memory: list[float]) -> None:
    while True:
        memory.append(_mebibytes(child))
        await asyncio.sleep(MEMORY_SECONDS)


def _mebibytes(child: RunningServer) -> float:
    return round(child.resident_bytes() / 2**20, 1)


def _bodies(model: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Answers are half as long or longer, up to one and a half times, so that they do not end all at once."""
    for index in count():
        num_tokens = round(options.max_tokens * random.Random(index).uniform(2 - LONGEST, LONGEST))
        yield {
            "model": model, "prompt": make_prompt(index, options.prompt_words), "max_tokens": num_tokens,
            "ignore_eos": True, "temperature": 0,
        }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; 1 if a request was neither answered to its end nor refused well."""
    options = _parse(argv)
    server = _server(options)
    with TemporaryDirectory() as folder:
        busy = busy_cores()
        with running(server, log=Path(folder) / "log") as child:
            rows = asyncio.run(_measure(child, served_model(server.url), options))
    print_table(rows, _COLUMNS)
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        write_json(options.json, rows, busy_cores=busy, **settings)
    return int(any(row["others"] for row in rows))


def _server(options: argparse.Namespace) -> Server:
    port = free_port()
    num_tokens = TOKENS_PER_WORD * options.prompt_words + LONGEST * options.max_tokens
    blocks = math.ceil(num_tokens / BLOCK_SIZE) + SPARE_BLOCKS
    role = ("bench.scaling", "--serve", "paced", "--") if options.paced else ("server",)
    command = (
        sys.executable, "-m", *role, options.model, "--port", str(port), "--max-num-seqs", str(options.slots),
        "--max-num-queued-requests", str(options.queue), "--log-level", "warning",
        "--num-kv-blocks", str(options.slots * blocks), "--block-size", str(BLOCK_SIZE),
        "--max-model-len", str(blocks * BLOCK_SIZE),
        "--num-threads", str(options.threads), *(("--separate-engine",) if options.paced else ()),
        *options.flags,
    )  # fmt: skip
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server("triolet", command, port, "/ready", environment)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What becomes of requests when there are far too many.")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--factor", type=float, default=50, help="how many times the capacity is offered")
    parser.add_argument("--seconds", type=float, default=60, help="of overload")
    parser.add_argument("--levelling", type=int, default=16, help="requests of each client before and after")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--queue", type=int, help="requests that may wait; by default one for eight slots")
    parser.add_argument("--prompt-words", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=256, help="of an answer, on average")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--paced", action="store_true", help="an engine that takes its time and computes nothing"
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("flags", nargs="*", help="more flags of the server, after --")
    options = parser.parse_args(argv)
    if options.queue is None:
        options.queue = max(1, options.slots // SLOTS_FOR_WAITING)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
