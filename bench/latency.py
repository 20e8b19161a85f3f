"""How soon the first token comes, and whether a long prompt makes others wait. Without HTTP, on this thread.

    python -m bench.latency --json out.json

**prefix**: the time to the first token of a prompt with a prefix that was computed before (warm), beside one
whose prefix is new (cold). **interference**: the time between two tokens of running streams while a long
prompt is computed, beside the same streams alone, for some limits of ``long_prefill_token_threshold``.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.report import percentile, print_table, write_json

if TYPE_CHECKING:
    from triolet import LLMEngine

__all__ = ["main", "run_interference", "run_prefix", "run_prefix_after_warm_up"]

_PREFIX_COLUMNS = ("prefix_tokens", "ttft_cold", "ttft_warm", "ratio")
_INTERFERENCE_COLUMNS = (
    "threshold", "streams", "prompt_tokens", "alone_p50", "alone_p99", "beside_p50", "beside_p99",
    "ratio_p99", "prefill_seconds",
)  # fmt: skip
_VOCABULARY = range(1000, 20_000)


def _random_tokens(index: int, length: int) -> list[int]:
    return random.Random(index).choices(_VOCABULARY, k=length)


def _add(engine: LLMEngine, request_id: str, token_ids: Sequence[int], max_tokens: int) -> None:
    from triolet import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    engine.add_request(request_id, token_ids, params)


def run_prefix(
    engine: LLMEngine, numbers: Iterator[int], *, prefix_tokens: int, suffix_tokens: int, num_rounds: int
) -> dict[str, Any]:
    """One row: medians over ``num_rounds`` prefixes, each asked for twice with different ends.

    Tokens are drawn from ``numbers``: those that were used on an engine before would find their prefix there.
    """
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(num_rounds):
        prefix = _random_tokens(next(numbers), prefix_tokens)
        for kind, values in times.items():
            token_ids = prefix + _random_tokens(next(numbers), suffix_tokens)
            values.append(_time_to_first_token(engine, f"{kind}-{next(numbers)}", token_ids))
    cold, warm = median(times["cold"]), median(times["warm"])
    return {
        "prefix_tokens": prefix_tokens,
        "suffix_tokens": suffix_tokens,
        "num_rounds": num_rounds,
        "ttft_cold": cold,
        "ttft_warm": warm,
        "ratio": warm / cold,
    }


def run_prefix_after_warm_up(engine: LLMEngine, **options: int) -> dict[str, Any]:
    """As :func:`run_prefix`, after a short one with tokens of its own."""
    numbers = count(1)
    run_prefix(engine, numbers, prefix_tokens=64, suffix_tokens=8, num_rounds=1)
    return run_prefix(engine, numbers, **options)


def _time_to_first_token(engine: LLMEngine, request_id: str, token_ids: Sequence[int]) -> float:
    started = time.perf_counter()
    _add(engine, request_id, token_ids, max_tokens=1)
    while not engine.step():
        pass
    return time.perf_counter() - started


def run_interference(
    engine: LLMEngine, *, threshold: int, num_streams: int, prompt_tokens: int, num_steps: int
) -> dict[str, Any]:
    """One row. All streams get a token in each step, so that a step's time is the time between two tokens."""
    for index in range(num_streams):
        _add(engine, f"stream-{index}", _random_tokens(-1 - index, 32), max_tokens=prompt_tokens)
    for _ in range(num_streams + 16):
        engine.step()
    alone = [_timed_step(engine)[0] for _ in range(num_steps)]
    _add(engine, "long", _random_tokens(0, prompt_tokens), max_tokens=1)
    beside: list[float] = []
    has_ended = False
    while not has_ended:
        seconds, ended = _timed_step(engine)
        beside.append(seconds)
        has_ended = "long" in ended
    for index in range(num_streams):
        engine.abort_request(f"stream-{index}")
    return {
        "threshold": threshold,
        "streams": num_streams,
        "prompt_tokens": prompt_tokens,
        "num_steps_alone": len(alone),
        "num_steps_beside": len(beside),
        "alone_p50": percentile(alone, 50),
        "alone_p99": percentile(alone, 99),
        "beside_p50": percentile(beside, 50),
        "beside_p99": percentile(beside, 99),
        "ratio_p99": percentile(beside, 99) / percentile(alone, 99),
        "prefill_seconds": sum(beside),
    }


def _timed_step(engine: LLMEngine) -> tuple[float, set[str]]:
    """How long a step took, and which requests it ended."""
    started = time.perf_counter()
    outputs = engine.step()
    return time.perf_counter() - started, {output.request_id for output in outputs if output.is_finished}


def main(argv: Sequence[str] | None = None) -> int:
    from triolet import EngineArgs, LLMEngine

    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prefix-tokens", type=int, default=1500)
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300, help="steps of the streams alone")
    parser.add_argument("--thresholds", type=int, nargs="*", default=[512, 20, 0])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args(argv)
    common: dict[str, Any] = {"model": options.model, "num_threads": options.threads}
    with LLMEngine(EngineArgs(**common)) as engine:
        prefix = run_prefix_after_warm_up(
            engine, prefix_tokens=options.prefix_tokens, suffix_tokens=20, num_rounds=options.rounds
        )
    print_table([prefix], _PREFIX_COLUMNS)
    interference = []
    for threshold in options.thresholds:
        with LLMEngine(EngineArgs(long_prefill_token_threshold=threshold, **common)) as engine:
            row = run_interference(
                engine,
                threshold=threshold,
                num_streams=options.streams,
                prompt_tokens=options.prompt_tokens,
                num_steps=options.steps,
            )
        interference.append(row)
    print_table(interference, _INTERFERENCE_COLUMNS)
    if options.json:
        rows = [
            {"scenario": "prefix", **prefix},
            *({"scenario": "interference", **row} for row in interference),
        ]
        write_json(options.json, rows, command=sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
