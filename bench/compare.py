"""triolet beside llama-server and vLLM on one model and one machine, turn about, with one client.

    python -m bench.compare --model SmolLM2-135M-Instruct.Q4_1.gguf --llama-server PATH/llama-server
        [--vllm PATH/python --vllm-model DIRECTORY]

Each round starts each server in turn, so that a machine that drifts drifts under both; what the machine can
do at most is measured before each. Medians over the rounds are printed and written to ``results/`` beside
this file, with every row and the plot for the README. Workloads: **answer**, by number of clients;
**prompt**, long ones with an answer of one token; **context**, one stream after a prompt of so many words,
without the time that this took; **neighbour**, one client while another process keeps a core busy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.client import Address, stream_request
from bench.online import Load, run_level, served_model
from bench.report import busy_cores, median_rows, print_table, write_csv, write_json
from bench.servers import Server, llama_server, running, triolet_server, vllm_server

__all__ = ["Settings", "machine_ceilings", "main", "ratios", "run_rounds"]

_RESULTS = Path(__file__).parent / "results"
_KEYS = ("server", "workload", "concurrency")
_COLUMNS = (
    *_KEYS, "output_tokens_per_s", "decode_tokens_per_s", "prompt_tokens_per_s", "ttft_p50",
    "inter_token_p50", "inter_token_p99", "latency_p50", "num_errors", "resident_mb", "seconds_to_ready",
    "first_token_s", "busy_cores", "read_gb_per_s", "matmul_gflop_per_s",
)  # fmt: skip
_NUM_PROMPT_INDICES = 10_000
_MIN_REQUESTS = 4
_SECONDS_TO_READY = 600.0
_CEILING_BYTES = 256 << 20
_FIGURES = {
    "prompt": "prompt_tokens_per_s",
    "context": "decode_tokens_per_s",
    "neighbour": "decode_tokens_per_s",
}
_ONE_THREAD = "triolet, 1 thread"
_ROOM = 600
"""Tokens in a context beside the words of its prompt: those of an answer, and of words that are several."""
_NEIGHBOUR = (sys.executable, "-c", "while True: pass")

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
    contexts: tuple[int, ...] = ()
    has_neighbour: bool = False


@dataclass(frozen=True, slots=True)
class _Level:
    """One row to be measured: ``load`` from so many clients."""

    workload: str
    load: Load
    concurrency: int
    num_requests: int


def run_rounds(
    servers: Iterable[StartServer],
    settings: Settings,
    log_folder: Path,
    ceilings: Callable[[], dict[str, float]] = dict,
) -> list[dict[str, Any]]:
    """Every row of every round; ``ceilings`` are of the machine, measured when no server runs."""
    starters = list(servers)
    rows = []
    for round_number in range(settings.num_rounds):
        for start in starters:
            server, machine = start(), {"busy_cores": busy_cores(), **ceilings()}
            log = log_folder / f"{server.name}-{round_number}.log"
            with running(server, log=log, timeout=_SECONDS_TO_READY) as process:
                first = _time_to_first_token(server)
                measured = _run_server(server, settings, round_number)
                resident = process.resident_bytes() / 2**20
                ready = process.seconds_to_ready
            for row in measured:
                row |= {
                    "round": round_number,
                    "resident_mb": resident,
                    "seconds_to_ready": ready,
                    "first_token_s": round(ready + first, 3),
                    **machine,
                }
            print_table(measured, _COLUMNS)
            rows += measured
    return rows


def machine_ceilings() -> dict[str, float]:
    """What the machine reads from memory and multiplies at most, just now."""
    import torch

    from bench.kernels import measure_ceilings
    from triolet_kernels.preferred_dtype import preferred_dtype

    dtype = preferred_dtype(torch.device("cpu"))
    ceilings = measure_ceilings(dtype, seconds=0.5, num_bytes=_CEILING_BYTES)
    return {
        "read_gb_per_s": round(ceilings.bytes_read / 1e9, 1),
        "matmul_gflop_per_s": round(ceilings.operations / 1e9, 1),
    }


def _time_to_first_token(server: Server) -> float:
    """Seconds that the first request of all takes to its first token."""
    load = Load(url=server.url, model=served_model(server.url), prompt_words=8, max_tokens=2)
    address = Address.parse(server.url)
    path, body = load.path_and_body(_NUM_PROMPT_INDICES - 1)
    return asyncio.run(stream_request(address, path, body, load.timeout)).time_to_first_token


def _levels(server: Server, settings: Settings) -> Iterator[_Level]:
    answer = Load(
        url=server.url,
        model=served_model(server.url),
        prompt_words=settings.answer_prompt_words,
        max_tokens=settings.answer_tokens,
    )
    for concurrency in settings.concurrencies:
        num_requests = max(_MIN_REQUESTS, concurrency * settings.requests_per_client)
        yield _Level("answer", answer, concurrency, num_requests)
    prompt = replace(answer, prompt_words=settings.long_prompt_words, max_tokens=1)
    yield _Level("prompt", prompt, 1, settings.num_long_prompts)
    for context in settings.contexts:
        yield _Level(f"context {context}", replace(answer, prompt_words=context), 1, 1)
    if settings.has_neighbour:
        # One answer: a peer whose threads wait for each other takes minutes for it.
        yield _Level("neighbour", replace(answer, max_tokens=settings.answer_tokens // 2), 1, 1)


def _run_server(server: Server, settings: Settings, round_number: int) -> list[dict[str, Any]]:
    rows = []
    levels = list(_levels(server, settings))
    for number, level in enumerate(levels):
        with _neighbour(is_there=level.workload == "neighbour"):
            row = run_level(
                level.load,
                concurrency=level.concurrency,
                num_requests=level.num_requests,
                prompt_index=(round_number * len(levels) + number) * _NUM_PROMPT_INDICES,
                server=server.name,
            )
        gap = row["inter_token_p50"]
        rows.append({"workload": level.workload, **row, "decode_tokens_per_s": 1 / gap if gap else 0.0})
    return rows


@contextmanager
def _neighbour(*, is_there: bool) -> Iterator[None]:
    """Have another process keep a core busy."""
    process = subprocess.Popen(_NEIGHBOUR) if is_there else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def ratios(rows: Sequence[dict[str, Any]], ours: str, theirs: str) -> list[dict[str, Any]]:
    """How many times their speed ours is, for each workload and number of clients."""
    by_key = {(row["server"], row["workload"], row["concurrency"]): row for row in rows}
    compared = []
    for (server, workload, concurrency), our_row in by_key.items():
        their_row = by_key.get((theirs, workload, concurrency))
        if server != ours or their_row is None:
            continue
        figure = _FIGURES.get(workload.partition(" ")[0], "output_tokens_per_s")
        compared.append(
            {
                "workload": workload,
                "concurrency": concurrency,
                ours: our_row[figure],
                theirs: their_row[figure],
                "ratio": our_row[figure] / their_row[figure] if their_row[figure] else 0.0,
            }
        )
    return compared


def _beside_one_thread(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our speed where a neighbour takes a core, beside that of one thread that has a core for itself."""
    speeds = {
        (row["server"], row["workload"]): row["decode_tokens_per_s"]
        for row in rows
        if row["concurrency"] == 1
    }
    ours, alone = speeds.get(("triolet", "neighbour")), speeds.get((_ONE_THREAD, "answer"))
    if ours is None or not alone:
        return []
    return [
        {
            "workload": "neighbour",
            "concurrency": 1,
            "triolet": ours,
            _ONE_THREAD: alone,
            "ratio": ours / alone,
        }
    ]


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
    parser.add_argument("--vllm", type=Path, help="the Python that vLLM is installed for")
    parser.add_argument("--vllm-model", type=Path, help="the same model as a directory of safetensors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument(
        "--contexts", type=int, nargs="*", default=[2000, 7500], help="words in the prompts of one stream"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--name", default="smollm2-cpu", help="of the files in results/")
    options = parser.parse_args(argv)
    if (options.vllm is None) != (options.vllm_model is None):
        parser.error("--vllm and --vllm-model go together")
    return options


def _peers(options: argparse.Namespace, settings: Settings, shape: dict[str, int]) -> list[StartServer]:
    context = max((1024, *(words + _ROOM for words in settings.contexts)))
    peers: list[StartServer] = [
        lambda: llama_server(options.llama_server, options.model, context=context, **shape)
    ]
    if options.vllm is not None:
        peers.append(lambda: vllm_server(options.vllm, options.vllm_model, context=context, **shape))
    return peers


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 if a request failed."""
    options = _parse(argv)
    settings = Settings(
        num_rounds=options.rounds,
        concurrencies=tuple(options.concurrency),
        requests_per_client=options.requests_per_client,
        contexts=tuple(options.contexts),
        has_neighbour=True,
    )
    num_slots = max(settings.concurrencies)
    shape = {"num_threads": options.threads, "num_slots": num_slots}
    servers: list[StartServer] = [
        lambda: triolet_server(str(options.model), **shape),
        *_peers(options, settings, shape),
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows = run_rounds(servers, settings, Path(folder), machine_ceilings)
        one: dict[str, Any] = {"num_threads": 1, "num_slots": 1}
        alone = replace(settings, concurrencies=(1,), num_long_prompts=1, contexts=(), has_neighbour=False)
        rows += run_rounds(
            [lambda: replace(triolet_server(str(options.model), **one), name=_ONE_THREAD)],
            alone,
            Path(folder),
            machine_ceilings,
        )
    medians = median_rows(rows, _KEYS)
    compared = [
        *ratios(medians, "triolet", "llama-server"),
        *ratios(medians, "triolet", "vllm"),
        *_beside_one_thread(medians),
    ]
    pp512 = _llama_bench(options.llama_server.with_name("llama-bench"), options.model, options.threads)
    print(f"\nmedians of {settings.num_rounds} rounds (llama-bench, 512-token prompt: {pp512:.1f} tok/s)")
    print_table(medians, _COLUMNS)
    print_table(compared, tuple(dict.fromkeys(name for row in compared for name in row)))
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

    command = [Path(argument).name for argument in sys.argv]  # where files lie here is of no use elsewhere
    settings = {"ratios": compared, "llama_bench_pp512": llama_bench_pp512, "command": command}
    _RESULTS.mkdir(exist_ok=True)
    write_json(_RESULTS / f"{name}.json", medians, **settings)
    write_csv(_RESULTS / f"{name}.csv", rows)
    answers = [row for row in medians if row["workload"] == "answer" and row["server"] != _ONE_THREAD]
    plot_levels(answers, _RESULTS / f"{name}.svg")


if __name__ == "__main__":
    sys.exit(main())
