"""triolet beside llama-server on one GGUF file and one machine, turn about, with one client.

    python -m bench.compare --model SmolLM2-135M-Instruct.Q4_1.gguf --llama-server PATH/llama-server

Each round starts each server in turn, so that a machine that drifts drifts under both. Medians over the
rounds are printed and written to ``results/`` beside this file, with every row and the plot for the README.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.online import Load, run_level, served_model
from bench.report import busy_cores, median_rows, print_table, write_csv, write_json
from bench.servers import Server, llama_server, running, triolet_server

__all__ = ["Settings", "main", "ratios", "run_rounds"]

_RESULTS = Path(__file__).parent / "results"
_KEYS = ("server", "workload", "concurrency")
_COLUMNS = (
    *_KEYS, "output_tokens_per_s", "prompt_tokens_per_s", "ttft_p50", "inter_token_p50", "inter_token_p99",
    "latency_p50", "num_errors", "resident_mb", "seconds_to_ready", "busy_cores",
)  # fmt: skip
_NUM_PROMPT_INDICES = 10_000
_MIN_REQUESTS = 4

StartServer = Callable[[], Server]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured. Lengths are in tokens, about; ``answer`` and ``prompt`` are the two workloads."""

    num_rounds: int = 3
    concurrencies: tuple[int, ...] = (1, 8, 32)
    requests_per_client: int = 2
    answer_prompt_words: int = 100
    answer_tokens: int = 128
    long_prompt_words: int = 512
    num_long_prompts: int = 8


def run_rounds(servers: Iterable[StartServer], settings: Settings, log_folder: Path) -> list[dict[str, Any]]:
    """Every row of every round."""
    starters = list(servers)
    rows = []
    for round_number in range(settings.num_rounds):
        for start in starters:
            server, busy = start(), busy_cores()
            log = log_folder / f"{server.name}-{round_number}.log"
            with running(server, log=log) as process:
                measured = _run_server(server, settings, round_number)
                resident = process.resident_bytes() / 2**20
                ready = process.seconds_to_ready
            for row in measured:
                row |= {
                    "round": round_number,
                    "resident_mb": resident,
                    "seconds_to_ready": ready,
                    "busy_cores": busy,
                }
            print_table(measured, _COLUMNS)
            rows += measured
    return rows


def _run_server(server: Server, settings: Settings, round_number: int) -> list[dict[str, Any]]:
    answer = Load(
        url=server.url,
        model=served_model(server.url),
        prompt_words=settings.answer_prompt_words,
        max_tokens=settings.answer_tokens,
    )
    prompt = Load(url=server.url, model=answer.model, prompt_words=settings.long_prompt_words, max_tokens=1)
    levels = [
        ("answer", answer, concurrency, max(_MIN_REQUESTS, concurrency * settings.requests_per_client))
        for concurrency in settings.concurrencies
    ]
    levels.append(("prompt", prompt, 1, settings.num_long_prompts))
    rows = []
    for level, (workload, load, concurrency, num_requests) in enumerate(levels):
        index = (round_number * len(levels) + level) * _NUM_PROMPT_INDICES
        row = run_level(
            load, concurrency=concurrency, num_requests=num_requests, prompt_index=index, server=server.name
        )
        rows.append({"workload": workload, **row})
    return rows


def ratios(rows: Sequence[dict[str, Any]], ours: str, theirs: str) -> list[dict[str, Any]]:
    """How many times their speed ours is, for each workload and number of clients."""
    by_key = {(row["server"], row["workload"], row["concurrency"]): row for row in rows}
    compared = []
    for (server, workload, concurrency), our_row in by_key.items():
        their_row = by_key.get((theirs, workload, concurrency))
        if server != ours or their_row is None:
            continue
        figure = "prompt_tokens_per_s" if workload == "prompt" else "output_tokens_per_s"
        compared.append(
            {
                "workload": workload,
                "concurrency": concurrency,
                ours: our_row[figure],
                theirs: their_row[figure],
                "ratio": our_row[figure] / their_row[figure],
            }
        )
    return compared


def _llama_bench(binary: Path, model: Path, num_threads: int) -> float:
    """llama.cpp's own figure for a 512-token prompt, in tokens per second, without a server."""
    done = subprocess.run(
        [binary, "-m", model, "-p", "512", "-n", "0", "-t", str(num_threads), "-o", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(json.loads(done.stdout)[0]["avg_ts"])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--llama-server", type=Path, required=True, help="the program; llama-bench beside it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--name", default="smollm2-cpu", help="of the files in results/")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a request failed."""
    options = _parse(argv)
    settings = Settings(
        num_rounds=options.rounds,
        concurrencies=tuple(options.concurrency),
        requests_per_client=options.requests_per_client,
    )
    num_slots = max(settings.concurrencies)
    shape = {"num_threads": options.threads, "num_slots": num_slots}
    servers: list[StartServer] = [
        lambda: triolet_server(str(options.model), **shape),
        lambda: llama_server(options.llama_server, options.model, **shape),
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows = run_rounds(servers, settings, Path(folder))
    medians = median_rows(rows, _KEYS)
    compared = ratios(medians, "triolet", "llama-server")
    pp512 = _llama_bench(options.llama_server.with_name("llama-bench"), options.model, options.threads)
    print(f"\nmedians of {settings.num_rounds} rounds (llama-bench, 512-token prompt: {pp512:.1f} tok/s)")
    print_table(medians, _COLUMNS)
    print_table(compared, tuple(compared[0]))
    _write(options.name, rows, medians, compared, pp512)
    return int(any(row["num_errors"] for row in rows))


def _write(
    name: str,
    rows: Sequence[dict[str, Any]],
    medians: Sequence[dict[str, Any]],
    compared: Sequence[dict[str, Any]],
    llama_bench_pp512: float,
) -> None:
    from bench.plot import plot_levels

    settings = {"ratios": compared, "llama_bench_pp512": llama_bench_pp512, "command": sys.argv}
    _RESULTS.mkdir(exist_ok=True)
    write_json(_RESULTS / f"{name}.json", medians, **settings)
    write_csv(_RESULTS / f"{name}.csv", rows)
    plot_levels([row for row in medians if row["workload"] == "answer"], _RESULTS / f"{name}.svg")


if __name__ == "__main__":
    sys.exit(main())
