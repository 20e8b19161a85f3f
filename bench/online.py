"""Load on an OpenAI-compatible server: latency and throughput for each number of clients.

    python -m bench.online --url http://127.0.0.1:8000/v1 --concurrency 1 8 32 --json out.json --plot out.svg

Each client sends its next request as soon as the last one ends. Only streamed requests are made.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from bench.client import Address, BenchError, Timed, stream_request
from bench.prompts import make_prompt
from bench.report import percentile, print_table, write_csv, write_json

__all__ = ["COLUMNS", "Load", "main", "run_level", "served_model"]

COLUMNS = (
    "server", "endpoint", "concurrency", "num_requests", "num_errors", "output_tokens_per_s",
    "prompt_tokens_per_s", "ttft_p50", "ttft_p99", "inter_token_p50", "inter_token_p99", "latency_p50",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to ask. ``endpoint`` is ``completions`` or ``chat``; lengths are about so many tokens.

    ``is_eos_ignored`` asks for answers of full length, a field that vLLM, llama-server and triolet know.
    """

    url: str
    model: str
    endpoint: str = "completions"
    prompt_words: int = 100
    max_tokens: int = 128
    is_eos_ignored: bool = True
    timeout: float = 600.0

    def path_and_body(self, index: int) -> tuple[str, dict[str, Any]]:
        prompt = make_prompt(index, self.prompt_words)
        body: dict[str, Any] = {"model": self.model, "max_tokens": self.max_tokens, "temperature": 0}
        if self.is_eos_ignored:
            body["ignore_eos"] = True
        if self.endpoint == "chat":
            return "/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}
        return "/completions", body | {"prompt": prompt}


def served_model(url: str) -> str:
    """The first model that the server lists."""
    with urlopen(f"{url}/models", timeout=10) as response:
        return str(json.load(response)["data"][0]["id"])


def run_level(
    load: Load, *, concurrency: int, num_requests: int, prompt_index: int, server: str
) -> dict[str, Any]:
    """One row: ``num_requests`` requests from ``concurrency`` clients, after a short one each as warm-up.

    Prompts are numbered from ``prompt_index`` on; give each level numbers of its own.
    """
    indices = count(prompt_index)
    warm_up = replace(load, max_tokens=min(load.max_tokens, 8))
    asyncio.run(_run_clients(warm_up, concurrency, concurrency, indices))
    started = time.perf_counter()
    results, errors = asyncio.run(_run_clients(load, concurrency, num_requests, indices))
    duration = time.perf_counter() - started
    row = {
        "server": server,
        "endpoint": load.endpoint,
        "concurrency": concurrency,
        "num_requests": num_requests,
        "num_errors": len(errors),
        "duration": round(duration, 4),
    }
    for message in sorted(set(errors)):
        print(f"error: {message}", file=sys.stderr)
    return row | _figures(results, duration)


async def _run_clients(
    load: Load, concurrency: int, num_requests: int, indices: Iterator[int]
) -> tuple[list[Timed], list[str]]:
    address = Address.parse(load.url)
    pending = iter([next(indices) for _ in range(num_requests)])
    results: list[Timed] = []
    errors: list[str] = []

    async def client() -> None:
        for index in pending:
            path, body = load.path_and_body(index)
            try:
                results.append(await stream_request(address, path, body, load.timeout))
            except BenchError as error:
                errors.append(str(error))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, num_requests)):
            group.create_task(client())
    return results, errors


def _figures(results: Sequence[Timed], duration: float) -> dict[str, float]:
    output_tokens = sum(timed.output_tokens for timed in results)
    prompt_tokens = sum(timed.prompt_tokens for timed in results)
    figures: dict[str, float] = {
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "output_tokens_per_s": output_tokens / duration,
        "prompt_tokens_per_s": prompt_tokens / duration,
    }
    series = {
        "ttft": [timed.time_to_first_token for timed in results],
        "inter_token": [gap for timed in results for gap in timed.gaps],
        "latency": [timed.latency for timed in results],
    }
    for name, values in series.items():
        for percent in (50, 90, 99):
            figures[f"{name}_p{percent}"] = percentile(values, percent)
    return {name: round(value, 6) for name, value in figures.items()}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.online", description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1", help="address up to and including /v1")
    parser.add_argument("--server", default="server", help="what to call it in the rows")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests-per-client", type=int, default=3)
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--stop-at-eos", action="store_true", help="do not ask for answers of full length")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--csv", type=Path, help="write the rows here")
    parser.add_argument("--plot", type=Path, help="draw throughput and latency here (.svg or .png)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the levels asked for and report; 1 if a request failed."""
    options = _parse(argv)
    load = Load(
        url=options.url,
        model=served_model(options.url),
        endpoint=options.endpoint,
        prompt_words=options.prompt_words,
        max_tokens=options.max_tokens,
        is_eos_ignored=not options.stop_at_eos,
    )
    rows = []
    for level, concurrency in enumerate(options.concurrency):
        num_requests = concurrency * options.requests_per_client
        rows.append(
            run_level(
                load,
                concurrency=concurrency,
                num_requests=num_requests,
                prompt_index=level * 100_000,
                server=options.server,
            )
        )
    print_table(rows, COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    if options.csv:
        write_csv(options.csv, rows)
    if options.plot:
        from bench.plot import plot_levels

        plot_levels(rows, options.plot)
    return int(any(row["num_errors"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
