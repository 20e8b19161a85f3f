"""What guessing at tokens gains where text repeats itself, and what it costs where it does not.

    python -m bench.speculation --batch 1 8 --json out.json

One engine for each kind of speculation, in turn on the same prompts, without HTTP. **repetitive**: code is to
be repeated, greedily. **hostile**: random digits, sampled: there is a guess at each place, and nearly all of
them are wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.report import print_table, write_json

if TYPE_CHECKING:
    from triolet import LLMEngine
    from triolet.core.engine_core import CoreFactory, EngineCore

__all__ = ["main", "make_prompts", "run_batch"]

WORKLOADS = {"repetitive": 0.0, "hostile": 1.0}
"""The temperature of each."""

_CODE = """def add(a, b):
    return a + b

def subtract(a, b):
    return a - b

def multiply(a, b):
    return a * b
"""
_COLUMNS = (
    "workload", "batch", "speculation", "decode_tokens_per_s", "ratio", "tokens_per_step", "num_draft_tokens",
    "acceptance",
)  # fmt: skip


def make_prompts(workload: str, batch: int, index: int) -> list[str]:
    """Prompts that differ from their first word on."""
    generator = random.Random(index)
    if workload == "repetitive":
        return [f"{generator.random()}\n{_CODE}\n{_CODE}\nOnce more:\n" for _ in range(batch)]
    return ["".join(generator.choices("0123456789", k=120)) for _ in range(batch)]


def run_batch(
    engine: LLMEngine, core: EngineCore, *, workload: str, batch: int, max_tokens: int, index: int
) -> dict[str, Any]:
    """One row; time and tokens count from the step in which the last request got its first token."""
    from triolet import SamplingParams

    params = SamplingParams(
        temperature=WORKLOADS[workload], max_tokens=max_tokens, ignore_eos=True, seed=index
    )
    before = core.statistics()
    for number, prompt in enumerate(make_prompts(workload, batch, index)):
        engine.add_request(f"{index}-{number}", prompt, params)
    num_tokens: dict[str, int] = {}
    started, num_first, num_steps = 0.0, 0, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            num_tokens[output.request_id] = output.num_output_tokens
        num_steps += 1
        if not started and len(num_tokens) == batch:
            started, num_first, num_steps = time.perf_counter(), sum(num_tokens.values()), 0
    seconds = time.perf_counter() - started
    after = core.statistics()
    num_drafts = after.num_draft_tokens - before.num_draft_tokens
    return {
        "decode_tokens_per_s": (sum(num_tokens.values()) - num_first) / seconds,
        "tokens_per_step": (sum(num_tokens.values()) - num_first) / num_steps / batch,
        "num_draft_tokens": num_drafts,
        "acceptance": (after.num_accepted_tokens - before.num_accepted_tokens) / num_drafts
        if num_drafts
        else 0.0,
    }


def _run_in_turn(
    engines: dict[str, tuple[LLMEngine, EngineCore]],
    *,
    workload: str,
    batch: int,
    max_tokens: int,
    rounds: int,
) -> list[dict[str, Any]]:
    """The median of each kind over all rounds, and of its ratio to the first kind in the same round."""
    measured: dict[str, list[dict[str, Any]]] = {kind: [] for kind in engines}
    for number in range(rounds):
        base = 0.0
        for kind, (engine, core) in engines.items():
            index = 1000 * batch + number
            row = run_batch(engine, core, workload=workload, batch=batch, max_tokens=max_tokens, index=index)
            base = base or row["decode_tokens_per_s"]
            row["ratio"] = row["decode_tokens_per_s"] / base
            measured[kind].append(row)
    return [
        {
            "workload": workload,
            "batch": batch,
            "speculation": kind,
            **{name: round(median(row[name] for row in rows), 4) for name in rows[0]},
        }
        for kind, rows in measured.items()
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each workload with each batch size after one short batch as warm-up."""
    from triolet import EngineArgs, LLMEngine
    from triolet.core.engine_core import load_core

    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--kinds", nargs="*", default=["ngram", "suffix"])
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = {}
        for kind in ("off", *options.kinds):
            cores: list[EngineCore] = []
            args = EngineArgs(
                model=options.model,
                num_threads=options.threads,
                speculation=kind,
                num_speculative_tokens=options.num_speculative_tokens,
            )
            engine = stack.enter_context(LLMEngine(args, core_factory=_keeping(cores, load_core)))
            engines[kind] = engine, cores[0]
            run_batch(engine, cores[0], workload="repetitive", batch=2, max_tokens=8, index=0)
        for workload in WORKLOADS:
            for batch in options.batch:
                rows += _run_in_turn(
                    engines,
                    workload=workload,
                    batch=batch,
                    max_tokens=options.max_tokens,
                    rounds=options.rounds,
                )
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    return 0


def _keeping(cores: list[EngineCore], core_factory: CoreFactory) -> CoreFactory:
    """A factory that also puts what it makes into ``cores``: their statistics are wanted."""

    def make(*arguments: Any) -> EngineCore:
        cores.append(core_factory(*arguments))
        return cores[-1]

    return make


if __name__ == "__main__":
    sys.exit(main())
