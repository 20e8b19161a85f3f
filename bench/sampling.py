"""Speed of sampling a step's tokens, by what requests ask for, beside the numpy reference in the same run.

    python -m bench.sampling
    python -m bench.sampling --rows 1 32 --vocabulary 49152 --threads 2 --json out.json

The model's part is left out: logits are copied, and the copy's time is taken off. A token's weight falls as a
power of its rank, as in a language model. Times are the best twentieth of many steps.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.kernels import best_time
from bench.report import print_table, write_json
from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments, Request
from triolet.runtime.sampler import Sampler
from triolet_kernels.ops import Ops, select_ops

__all__ = ["KINDS", "main", "measure"]

KINDS: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k 40": {"temperature": 0.8, "top_k": 40},
    "top-p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "penalties": {
        "adjustments": LogitsAdjustments(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5)
    },
    "5 logprobs": {"num_logprobs": 5},
}

EXPONENT = 1.3
HISTORY_LENGTH = 1000

_COLUMNS = ("kind", "rows", "ms", "reference ms")


def measure(
    ops: Mapping[str, Ops], kind: str, num_rows: int, vocab_size: int, *, seconds: float
) -> dict[str, Any]:
    """Milliseconds of a step of ``num_rows`` requests with each of ``ops``, by its name."""
    logits = _make_logits(num_rows, vocab_size)
    rows = _make_rows(kind, num_rows, vocab_size)
    copying = best_time([logits.clone], seconds / 4)
    table: dict[str, Any] = {"kind": kind, "rows": num_rows}
    for name, implementation in ops.items():
        sampler = Sampler(vocab_size, ops=implementation)
        sampler.begin(rows)
        duration = best_time([lambda s=sampler: s.sample(logits, rows, torch.clone)], seconds)  # type: ignore[misc]
        table[name] = max(0.0, duration - copying) * 1e3
    return table


def _make_logits(num_rows: int, vocab_size: int) -> Tensor:
    falling = -EXPONENT * torch.arange(1, vocab_size + 1).log()
    generator = torch.Generator().manual_seed(0)
    return torch.stack([falling[torch.randperm(vocab_size, generator=generator)] for _ in range(num_rows)])


def _make_rows(kind: str, num_rows: int, vocab_size: int) -> list[PlanRow]:
    prompt = tuple(token % vocab_size for token in range(HISTORY_LENGTH))
    return [
        PlanRow(
            request=Request(request_id=slot, prompt_token_ids=prompt, max_tokens=1, seed=slot, **KINDS[kind]),
            slot=slot,
            start=HISTORY_LENGTH - 1,
            num_tokens=1,
            token_ids=prompt[-1:],
            first_new_block=0,
            new_block_ids=((),),
            is_sampled=True,
            history=prompt,
        )
        for slot in range(num_rows)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    ops = {
        "ms": select_ops(device, num_threads=options.threads),
        "reference ms": select_ops(device, is_reference=True),
    }
    table = [
        measure(ops, kind, num_rows, options.vocabulary, seconds=options.seconds)
        for num_rows in options.rows
        for kind in KINDS
    ]
    print(f"{ops['ms'].name}, {options.threads} threads, {options.vocabulary} tokens")
    print_table(table, _COLUMNS)
    if options.json:
        write_json(options.json, table)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of sampling, by what requests ask for.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="requests in a step")
    parser.add_argument("--vocabulary", type=int, default=49152, help="tokens")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write the rows here")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
