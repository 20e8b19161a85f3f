"""Engine processes that fail at random under load: what clients see of it, and how soon all serve again.

    python -m bench.recovery --kills 100 --json bench/results/recovery.json
    python -m bench.recovery --kills 20 -- --api-server-count 2 --backend trio

A server with two engines answers completions, streamed and not, whose texts are known from a single process.
Meanwhile engines are killed, stopped, and made to crash in a step, one or both at a time. Every request has
to be answered with the right text, or to fail with its cause. The server's delay before a restart is held at
its first value, half a second: it would double with each failure.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx

from bench.answers import Job, Verdict, ask, expected_texts, make_jobs
from bench.kills import KINDS, engine_pids, fail
from bench.report import percentile, print_table, write_json
from bench.servers import Server, free_port, running

__all__ = ["Failure", "Record", "main", "summary"]

NUM_RANKS = 2
NUM_JOBS = 64
POLL_SECONDS = 0.05
RECOVERY_TIMEOUT = 120.0
BOTH_SHARE = 0.2
"""How often both engines fail at once."""

_COLUMNS = ("kind", "failures", "noticed p50 s", "noticed max s", "back p50 s", "back p90 s", "back max s")


@dataclass(frozen=True, slots=True)
class Failure:
    """``noticed`` and ``back`` are the seconds until /health knew of it, and until all engines were ready."""

    kind: str
    noticed: float
    back: float


@dataclass(slots=True)
class Record:
    """All that happened."""

    failures: list[Failure] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    is_over: bool = False

    @property
    def violations(self) -> list[str]:
        return [verdict.told for verdict in self.verdicts if verdict.kind == "violation"]


class _Watch:
    """What /health says of the engines."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ranks(self) -> list[dict[str, Any]]:
        return (await self._client.get("/health")).json()["ranks"]  # type: ignore[no-any-return]

    async def num_restarts(self) -> int:
        return sum(rank["num_restarts"] for rank in await self.ranks())

    async def until(self, *, num_restarts: int | None = None) -> float:
        """When an engine is known not to be ready; or when all are again, after so many restarts."""
        with anyio.fail_after(RECOVERY_TIMEOUT):
            while True:
                ranks = await self.ranks()
                are_ready = all(rank["state"] == "ready" for rank in ranks)
                restarts = sum(rank["num_restarts"] for rank in ranks)
                if not are_ready if num_restarts is None else are_ready and restarts >= num_restarts:
                    return time.perf_counter()
                await anyio.sleep(POLL_SECONDS)


async def _run_load(url: str, jobs: Sequence[Job], num_clients: int, record: Record) -> None:
    """Ask for one completion after the other, from as many clients, until it is over."""
    limits = httpx.Limits(max_connections=num_clients, max_keepalive_connections=num_clients)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:

        async def keep_asking(number: int) -> None:
            dice = random.Random(number)
            while not record.is_over:
                verdict = await ask(client, dice.choice(jobs), is_streamed=dice.random() < 0.7)
                record.verdicts.append(verdict)
                if verdict.kind == "failed":
                    await anyio.sleep(0.1)

        async with anyio.create_task_group() as tasks:
            for number in range(num_clients):
                tasks.start_soon(keep_asking, number)


async def _run_failures(url: str, server: int, num_failures: int, seed: int, record: Record) -> None:
    """Have engines fail, one time after the other, each when all are ready."""
    dice = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        watch = _Watch(client)
        num_restarts = await watch.num_restarts()
        try:
            while len(record.failures) < num_failures:
                await anyio.sleep(dice.uniform(0.1, 0.8))
                pids = engine_pids(server)
                dice.shuffle(pids)
                hit = pids if dice.random() < BOTH_SHARE else pids[:1]
                kinds = [dice.choice(KINDS) for _ in hit]
                started = time.perf_counter()
                for pid, kind in zip(hit, kinds, strict=True):
                    fail(pid, kind)
                num_restarts += len(hit)
                noticed = await watch.until() - started
                back = await watch.until(num_restarts=num_restarts) - started
                record.failures += [Failure(kind, noticed, back) for kind in kinds]
        finally:
            record.is_over = True


async def _measure(server: Server, pid: int, jobs: Sequence[Job], options: argparse.Namespace) -> Record:
    """Load and failures side by side, to the last answer."""
    record = Record()
    url = server.url.removesuffix("/v1")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run_load, url, jobs, options.clients, record)
        tasks.start_soon(_run_failures, url, pid, options.kills, options.seed, record)
    return record


def summary(record: Record) -> list[dict[str, Any]]:
    """A row for each kind of failure, and one for all."""
    rows = []
    for kind in (*KINDS, "all"):
        failures = [failure for failure in record.failures if kind in (failure.kind, "all")]
        noticed = [failure.noticed for failure in failures]
        back = [failure.back for failure in failures]
        rows.append({
            "kind": kind, "failures": len(failures),
            "noticed p50 s": percentile(noticed, 50), "noticed max s": max(noticed, default=0.0),
            "back p50 s": percentile(back, 50), "back p90 s": percentile(back, 90),
            "back max s": max(back, default=0.0),
        })  # fmt: skip
    return rows


def _server(model: str, stall_timeout: float, more: Sequence[str]) -> Server:
    """The server, with a budget for any number of restarts."""
    port = free_port()
    command = (
        sys.executable, "-m", "bench.recovery", "--serve", "--", model, "--port", str(port),
        "--data-parallel-size", str(NUM_RANKS), "--num-threads", str(NUM_RANKS),
        "--engine-restart-budget", "100000", "--engine-stall-timeout", str(stall_timeout),
        "--log-level", "warning", *more,
    )  # fmt: skip
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server("triolet", command, port, "/ready", environment, ready_line=" is ready at ")


def _serve(arguments: Sequence[str]) -> int:
    from triolet.cli import serve_main
    from triolet.cluster import restart_budget

    restart_budget.LONGEST_DELAY_SECONDS = restart_budget.FIRST_DELAY_SECONDS
    return serve_main(arguments)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 if a request was neither answered rightly nor failed with its cause."""
    options = _parse(argv)
    if options.serve:
        return _serve(options.arguments)
    jobs = expected_texts(options.model, make_jobs(NUM_JOBS, options.seed))
    with TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "log"
        server = _server(options.model, options.stall_timeout, options.arguments)
        with running(server, log=log) as child:
            record = anyio.run(_measure, server, child.pid, jobs, options)
    rows = summary(record)
    print_table(rows, _COLUMNS)
    counts = Counter(verdict.kind for verdict in record.verdicts)
    print(f"requests: {len(record.verdicts)}, {', '.join(f'{n} {kind}' for kind, n in counts.items())}")
    for violation in record.violations[:10]:
        print(f"violation: {violation}")
    if options.json:
        causes = Counter(
            verdict.told.partition("; it wrote: ")[0]
            for verdict in record.verdicts
            if verdict.kind == "failed"
        )
        failures = [[one.kind, round(one.noticed, 3), round(one.back, 3)] for one in record.failures]
        write_json(
            options.json, rows, requests=dict(counts), clients=options.clients, seed=options.seed,
            stall_timeout=options.stall_timeout, causes=causes.most_common(20), failures=failures,
        )  # fmt: skip
    return 1 if record.violations else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Engine processes that fail at random under load.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="as the server's")
    parser.add_argument("--kills", type=int, default=10, help="failures of engines")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--stall-timeout", type=float, default=2.0, help="of the server, in seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--log", type=Path, help="write what the server says here")
    parser.add_argument("--serve", action="store_true", help="be the server")
    parser.add_argument("arguments", nargs="*", help="further options of the server, after --")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
