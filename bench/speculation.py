"""What guessing at tokens gains where text repeats itself, and what it costs where it does not.

    python -m bench.speculation --batch 1 8 --temperature 0 0.8 --json out.json

One engine for each kind of speculation, in turn on the same requests, without HTTP. So many clients as
``--batch`` says send one request after the other, until each has been answered ``--requests`` times; prompts
count too. **chat**, **rewrite**, **code**, **json** and **turns** are conversations
(:mod:`bench.conversations`), answered as long as the model likes. **words**: a prompt of common words in any
order, after which small models soon repeat themselves. **hostile**: random digits, sampled: there is a guess
at each place, and nearly all of them are wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.conversations import KINDS, make_conversation
from bench.prompts import make_prompt
from bench.report import print_table, write_json

if TYPE_CHECKING:
    from triolet import EngineArgs, LLMEngine
    from triolet.core.engine_core import CoreFactory, EngineCore

__all__ = ["PROMPTS", "WORKLOADS", "Load", "main", "run_load"]

PROMPTS = {
    "words": lambda index: make_prompt(index, 100),
    "hostile": lambda index: "".join(random.Random(index).choices("0123456789", k=120)),
}
"""Workloads that are prompts, whose answers go on to the last token asked for."""

WORKLOADS = (*KINDS, *PROMPTS)
MIN_REQUESTS = 4
_COLUMNS = (
    "workload", "temperature", "batch", "speculation", "output_tokens_per_s", "ratio", "tokens_per_step",
    "share_guessed", "num_draft_tokens", "acceptance",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one row is measured with: so many clients and requests, tokens of an answer at most, and a number
    to tell its requests from those of others."""

    workload: str
    temperature: float
    batch: int
    num_requests: int
    max_tokens: int
    index: int


def run_load(engine: LLMEngine, core: EngineCore, load: Load) -> dict[str, Any]:
    """One row: output tokens per second of all steps, and what was guessed."""
    before = core.statistics()
    numbers = iter(range(load.num_requests))
    for number in numbers:
        _add(engine, load, number)
        if number + 1 == load.batch:
            break
    num_tokens, num_steps, started = 0, 0, time.perf_counter()
    while engine.has_unfinished_requests():
        num_steps += 1
        for output in engine.step():
            if output.finished:
                num_tokens += output.num_output_tokens
                for number in numbers:
                    _add(engine, load, number)
                    break
    seconds = time.perf_counter() - started
    after = core.statistics()
    num_drafts = after.num_draft_tokens - before.num_draft_tokens
    num_accepted = after.num_accepted_tokens - before.num_accepted_tokens
    return {
        "output_tokens_per_s": num_tokens / seconds,
        "tokens_per_step": num_tokens / num_steps / load.batch,
        "share_guessed": num_accepted / num_tokens,
        "num_draft_tokens": num_drafts,
        "acceptance": num_accepted / num_drafts if num_drafts else 0.0,
    }


def _add(engine: LLMEngine, load: Load, number: int) -> None:
    from triolet import SamplingParams

    index = load.index + number
    params = SamplingParams(
        temperature=load.temperature,
        max_tokens=load.max_tokens,
        ignore_eos=load.workload in PROMPTS,
        seed=index,
    )
    if load.workload in PROMPTS:
        engine.add_request(str(index), PROMPTS[load.workload](index), params)
    else:
        engine.add_chat_request(str(index), make_conversation(load.workload, index), params)


def _run_in_turn(
    engines: dict[str, tuple[LLMEngine, EngineCore]], load: Load, rounds: int
) -> list[dict[str, Any]]:
    """The median of each kind over all rounds, and of its ratio to the first kind in the same round."""
    measured: dict[str, list[dict[str, Any]]] = {kind: [] for kind in engines}
    for number in range(rounds):
        base = 0.0
        for kind, (engine, core) in engines.items():
            engine.reset_prefix_cache()
            row = run_load(engine, core, replace(load, index=load.index + number * load.num_requests))
            base = base or row["output_tokens_per_s"]
            row["ratio"] = row["output_tokens_per_s"] / base
            measured[kind].append(row)
    return [
        {
            "workload": load.workload,
            "temperature": load.temperature,
            "batch": load.batch,
            "speculation": kind,
            **{name: round(median(row[name] for row in rows), 4) for name in rows[0]},
        }
        for kind, rows in measured.items()
    ]


def _loads(options: argparse.Namespace) -> Iterator[Load]:
    for workload in options.workload:
        for temperature in options.temperature:
            for batch in options.batch:
                yield Load(
                    workload=workload,
                    temperature=temperature,
                    batch=batch,
                    num_requests=max(MIN_REQUESTS, batch * options.requests),
                    max_tokens=options.max_tokens,
                    index=1000 * batch,
                )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each workload with each temperature and batch size after one short batch as warm-up."""
    from triolet import EngineArgs, LLMEngine
    from triolet.core.engine_core import load_core

    options = _parser(EngineArgs()).parse_args(argv)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        engines = {}
        for kind in ("off", *options.kinds):
            cores: list[EngineCore] = []
            args = EngineArgs(
                model=options.model,
                num_threads=options.threads,
                chat_template=options.chat_template,
                speculation=kind,
                num_speculative_tokens=options.num_speculative_tokens,
            )
            engine = stack.enter_context(LLMEngine(args, core_factory=_keeping(cores, load_core)))
            engines[kind] = engine, cores[0]
            warm_up = Load(workload="words", temperature=0, batch=2, num_requests=2, max_tokens=8, index=0)
            run_load(engine, cores[0], warm_up)
        for load in _loads(options):
            rows += _run_in_turn(engines, load, options.rounds)
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    return 0


def _parser(defaults: EngineArgs) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.speculation", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=defaults.model)
    parser.add_argument("--chat-template", type=Path)
    parser.add_argument("--kinds", nargs="*", default=["ngram", "suffix"])
    parser.add_argument("--num-speculative-tokens", type=int, default=defaults.num_speculative_tokens)
    parser.add_argument("--workload", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests", type=int, default=2, help="requests of each client")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the rows here")
    return parser


def _keeping(cores: list[EngineCore], core_factory: CoreFactory) -> CoreFactory:
    """A factory that also puts what it makes into ``cores``: their statistics are wanted."""

    def make(*arguments: Any) -> EngineCore:
        cores.append(core_factory(*arguments))
        return cores[-1]

    return make


if __name__ == "__main__":
    sys.exit(main())
