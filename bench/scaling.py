"""What processes cost, and how evenly requests are spread: shapes of several processes beside one process.

    python -m bench.scaling --json bench/results/scaling.json

Engines are real but for the model: theirs computes nothing, so that all there is to measure is HTTP, routing
and links. The client shares the cores with the servers, so CPU time for a request tells more than throughput.
Evenness is measured with engines whose steps take time, on requests of mixed lengths.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from bench.free_engine import serve
from bench.kills import engine_pids
from bench.online import Load, run_level, served_model
from bench.prompts import make_prompt
from bench.report import median_rows, print_table, write_csv, write_json
from bench.servers import RunningServer, Server, free_port, running

__all__ = [
    "SHAPES",
    "MixedLoad",
    "busy_seconds",
    "imbalance",
    "main",
    "measure_evenness",
    "measure_shape",
    "processor_seconds",
]

SHAPES: Mapping[str, tuple[str, ...]] = {
    "one process": (),
    "separate engine": ("--separate-engine",),
    "DP 2": ("--data-parallel-size", "2"),
    "2 API servers": ("--api-server-count", "2"),
    "2 API servers, DP 2": ("--api-server-count", "2", "--data-parallel-size", "2"),
}
MAX_NUM_SEQS = 64
MEAN_LOG_LENGTHS = {"prompt": 5.0, "answer": 4.0}
SIGMA = 0.8
LONGEST = {"prompt": 1500, "answer": 400}
BUSY = r'^triolet_step_duration_seconds_sum\{.*?engine="(\d+)".*?\} (\S+)$'

_SPEED = (
    "shape", "requests/s", "output_tokens_per_s", "server CPU ms/request", "of it HTTP", "of it engines",
    "x one process", "ttft_p50",
)  # fmt: skip
_EVENNESS = ("arrival", "requests", "busy s of ranks", "imbalance %")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLoad(Load):
    """Requests of log-normal lengths, always the same for an index."""

    def path_and_body(self, index: int) -> tuple[str, dict[str, Any]]:
        dice = random.Random(index)
        words, tokens = (
            min(int(dice.lognormvariate(MEAN_LOG_LENGTHS[name], SIGMA)) + 1, LONGEST[name])
            for name in ("prompt", "answer")
        )
        path, body = super(MixedLoad, self).path_and_body(index)
        return path, body | {"prompt": make_prompt(index, words), "max_tokens": min(tokens, self.max_tokens)}


def processor_seconds(server: int) -> dict[int, float]:
    """The seconds of CPU that the server and each process below it have used. Source: proc_pid_stat(5)."""
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    used = {server: (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}
    for child in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        used |= processor_seconds(int(child))
    return used


def busy_seconds(metrics: str) -> list[float]:
    """The time that each rank has spent in steps, from the page of metrics."""
    found = re.findall(BUSY, metrics, re.MULTILINE)
    return [float(value) for _, value in sorted(found, key=lambda item: int(item[0]))]


def imbalance(busy: Sequence[float]) -> float:
    """By how much the busiest rank exceeds the least busy one, as a share of their mean."""
    return (max(busy) - min(busy)) * len(busy) / sum(busy)


def measure_shape(
    shape: str, child: RunningServer, load: Load, options: argparse.Namespace
) -> dict[str, Any]:
    """A row: what so many clients get from it, and what that costs."""
    before = processor_seconds(child.pid)
    row = run_level(
        load, concurrency=options.clients, num_requests=options.requests, prompt_index=0, server=shape
    )
    after = processor_seconds(child.pid)
    num_requests = options.requests + options.clients  # as many to warm up
    used = {pid: (seconds - before[pid]) / num_requests * 1e3 for pid, seconds in after.items()}
    engines = sum(used[pid] for pid in engine_pids(child.pid))
    total = sum(used.values())
    return {
        "shape": shape, "requests/s": row["num_requests"] / row["duration"], "server CPU ms/request": total,
        "of it HTTP": total - engines, "of it engines": engines, **row,
    }  # fmt: skip


def measure_evenness(arrival: str, load: Load, url: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row: how long the ranks were busy with requests that come steadily, or in waves."""
    num_waves = 1 if arrival == "steady" else options.waves
    clients = options.clients if arrival == "steady" else max(1, options.mixed_requests // num_waves)
    before = busy_seconds(_metrics(url))
    num_errors = 0
    for wave in range(num_waves):
        num_requests = options.mixed_requests // num_waves
        row = run_level(
            load, concurrency=clients, num_requests=num_requests, prompt_index=wave * 10_000, server=arrival
        )
        num_errors += row["num_errors"]
    busy = [after - earlier for after, earlier in zip(busy_seconds(_metrics(url)), before, strict=True)]
    return {
        "arrival": arrival, "requests": options.mixed_requests, "num_errors": num_errors,
        "busy s of ranks": " ".join(f"{seconds:.2f}" for seconds in busy),
        "imbalance %": 100 * imbalance(busy),
    }  # fmt: skip


def _metrics(url: str) -> str:
    with urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=10) as response:
        return str(response.read().decode())


def _server(role: str, model: str, shape: Sequence[str]) -> Server:
    port = free_port()
    command = (
        sys.executable, "-m", "bench.scaling", "--serve", role, "--", model, "--port", str(port),
        "--max-num-seqs", str(MAX_NUM_SEQS), "--log-level", "warning", *shape,
    )  # fmt: skip
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return Server("triolet", command, port, "/ready", environment, ready_line=" is ready at ")


def _speed_rows(options: argparse.Namespace, log: Path) -> list[dict[str, Any]]:
    """The medians of all rounds, each shape's beside what one process needs."""
    rows = []
    for _ in range(options.rounds):
        for shape in options.shapes:
            server = _server("free", options.model, SHAPES[shape])
            with running(server, log=log) as child:
                load = Load(
                    url=server.url, model=served_model(server.url),
                    prompt_words=options.prompt_words, max_tokens=options.max_tokens,
                )  # fmt: skip
                rows.append(measure_shape(shape, child, load, options))
    medians = median_rows(rows, ["shape"])
    base = medians[0]["server CPU ms/request"]
    return [row | {"x one process": row["server CPU ms/request"] / base} for row in medians]


def _evenness_rows(options: argparse.Namespace, log: Path) -> list[dict[str, Any]]:
    server = _server("paced", options.model, SHAPES["DP 2"])
    with running(server, log=log):
        load = MixedLoad(url=server.url, model=served_model(server.url), max_tokens=options.longest_answer)
        return [measure_evenness(arrival, load, server.url, options) for arrival in ("steady", "waves")]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print both tables; 1 if a request failed."""
    options = _parse(argv)
    if options.serve:
        return serve(options.serve, options.arguments)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        speed = _speed_rows(options, log)
        evenness = _evenness_rows(options, log) if options.mixed_requests else []
    print_table(speed, _SPEED)
    print_table(evenness, _EVENNESS)
    if options.json:
        settings = {
            name: getattr(options, name) for name in ("clients", "prompt_words", "max_tokens", "rounds")
        }
        write_json(options.json, [*speed, *evenness], **settings)
    if options.csv:
        write_csv(options.csv, [*speed, *evenness])
    return int(any(row["num_errors"] for row in (*speed, *evenness)))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What processes cost, and how evenly requests are spread.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="whose tokenizer is used")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3, help="of each shape")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=320, help="of each shape and round")
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--mixed-requests", type=int, default=400, help="each way to come; 0: none")
    parser.add_argument("--waves", type=int, default=8)
    parser.add_argument("--longest-answer", type=int, default=LONGEST["answer"], help="of mixed lengths")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--csv", type=Path, help="write the rows here")
    parser.add_argument("--serve", choices=["free", "paced", "steady"], help="be a server with such engines")
    parser.add_argument("arguments", nargs="*", help="its arguments")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
