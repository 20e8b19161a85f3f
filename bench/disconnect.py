"""Clients that leave, in each phase of a request, on a server with one slot: how soon the slot is free again.

    python -m bench.disconnect --rounds 200 --json bench/results/disconnect-smollm2.json

A client comes alone, waits until its request is in the phase, and closes or resets its connection, without a
word. Nothing else is sent but questions about load and metrics. Each time the slot and its blocks have to be
free, the request has to be counted as ended early, and no step may be computed for it any more.

Two times are told: what the server has measured, from when it knew to when the slot was free, beside the mean
of the steps that it computed; and what can be seen from outside, from the close to an answer of ``/load``
that shows none.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.leavers import PHASES, Leaver, Situation
from bench.monitor import Metrics, Monitor
from bench.online import served_model
from bench.report import busy_cores, percentile, print_table, write_json
from bench.servers import Server, free_port, running

__all__ = ["Departure", "histogram", "main", "measure"]

CANCEL, STEP = "triolet_cancel_latency_seconds", "triolet_step_duration_seconds"
BUCKETS_MS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0)
_COLUMNS = (
    "phase", "num_left", "step_mean_ms", "cancel_p50_ms", "cancel_p99_ms", "cancel_max_ms", "seen_p50_ms",
    "seen_p99_ms", "seen_max_ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Departure:
    """One client that has left. Seconds: until the slot was free as the server has it, and as seen."""

    cancel: float
    seen: float


def measure(
    phase: str, url: str, model: str, *, num_rounds: int, start: int = 0, step_seconds: float = 0.003
) -> dict[str, Any]:
    """A row: so many clients that leave in this phase. Raises RuntimeError where anything stays behind.

    Prompts are numbered from ``start`` on.
    """
    dice = random.Random(phase)
    monitor = Monitor(url.removesuffix("/v1"))
    before = monitor.metrics()
    departures = []
    for index in range(start, start + 2 * num_rounds, 2):
        now = Situation(url, model, monitor, dice, index, step_seconds)
        departures.append(_leave_once(phase, now))
    after = monitor.metrics()
    monitor.close()
    num_steps = _difference(before, after, f"{STEP}_count")
    return {
        "phase": phase,
        "num_left": len(departures),
        "step_mean_ms": 1e3 * _difference(before, after, f"{STEP}_sum") / max(1.0, num_steps),
        **_percentiles("cancel", [one.cancel for one in departures]),
        **_percentiles("seen", [one.seen for one in departures]),
        "cancel_histogram": histogram([one.cancel for one in departures]),
    }


def histogram(seconds: Sequence[float]) -> list[tuple[float | None, int]]:
    """How many are within each number of milliseconds and above the one before; None: all others."""
    left = sorted(1e3 * value for value in seconds)
    rows: list[tuple[float | None, int]] = []
    for bound in BUCKETS_MS:
        within = [value for value in left if value <= bound]
        left = left[len(within) :]
        rows.append((bound, len(within)))
    return [*rows, (None, len(left))]


def _leave_once(phase: str, now: Situation) -> Departure:
    blocker = _block(now) if phase == "queued" else None
    before = now.monitor.metrics()
    client = PHASES[phase](now)
    left = client.leave(is_abrupt=now.dice.random() < 0.5)
    seen = now.monitor.until(_is_empty if blocker is None else _has_one)
    # One that waited needs nothing of the step that is under way, but counts as gone when that has ended.
    now.monitor.await_metrics(lambda metrics: _difference(before, metrics, f"{CANCEL}_count") == 1)
    after = now.monitor.metrics()
    num_late_steps = _difference(after, now.monitor.metrics(), "triolet_steps_total")
    if blocker is None and num_late_steps:
        raise RuntimeError(f"{phase}: {num_late_steps:g} steps were computed for nobody")
    num_ended = _difference(before, after, "triolet_request_outcome_total")
    num_aborted = _difference(before, after, "triolet_request_outcome_total", '"abort"')
    if (num_ended, num_aborted) != (1, 1):
        raise RuntimeError(f"{phase}: {num_ended:g} requests have ended, {num_aborted:g} of them early")
    if blocker is not None:
        blocker.leave(is_abrupt=False)
        now.monitor.until(_is_empty)
    return Departure(_difference(before, after, f"{CANCEL}_sum"), seen - left)


def _block(now: Situation) -> Leaver:
    """Another client, who takes the slot."""
    client = Situation(now.url, now.model, now.monitor, now.dice, now.index + 1, 0.0).completion(stream=True)
    client.read(b"data:")
    return client


def _is_empty(load: dict[str, Any]) -> bool:
    """Whether the slot is free, and all blocks are."""
    return not load["server_load"] and not load["kv_cache_usage"]


def _has_one(load: dict[str, Any]) -> bool:
    return bool(load["server_load"] == load["num_requests_running"] == 1)


def _difference(before: Metrics, after: Metrics, name: str, label: str = "") -> float:
    return after.total(name, label) - before.total(name, label)


def _percentiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    milliseconds = [1e3 * value for value in seconds]
    found = {f"p{percent}": percentile(milliseconds, percent) for percent in (50, 99)}
    found["max"] = max(milliseconds)
    return {f"{name}_{which}_ms": round(value, 3) for which, value in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table. Raises RuntimeError where a request was not ended as it has to be."""
    options = _parse(argv)
    server = _server(options)
    rows = []
    with TemporaryDirectory() as folder:
        busy = busy_cores()
        with running(server, log=Path(folder) / "log"):
            model = served_model(server.url)
            for number, phase in enumerate(options.phases):
                start = (number + 1) * 10**6
                measure(phase, server.url, model, num_rounds=2, start=start + 10**5)  # to warm up
                rows.append(measure(phase, server.url, model, num_rounds=options.rounds, start=start))
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, backend=options.backend, busy_cores=busy, threads=options.threads)
    return 0


def _server(options: argparse.Namespace) -> Server:
    port = free_port()
    command = [
        sys.executable,
        "-m",
        *(["bench.scaling", "--serve", "paced", "--"] if options.paced else ["server"]),
    ]
    command += [
        options.model, "--port", str(port), "--max-num-seqs", "1", "--log-level", "warning",
        "--backend", options.backend, "--num-threads", str(options.threads),
    ]  # fmt: skip
    if options.paced:
        command.append("--separate-engine")
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server("triolet", tuple(command), port, "/ready", environment)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How soon a slot is free whose client has left.")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--phases", nargs="+", choices=list(PHASES), default=list(PHASES))
    parser.add_argument("--rounds", type=int, default=200, help="clients that leave in each phase")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--paced", action="store_true", help="an engine that takes its time and computes nothing"
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
