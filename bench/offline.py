"""Speed of the engine without HTTP: prompt tokens and generated tokens per second for each batch size.

    python -m bench.offline --batch 1 8 32 --json out.json

Drives :class:`triolet.LLMEngine` step by step on this thread, so that nothing but the engine is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.prompts import make_prompt
from bench.report import print_table, write_json

if TYPE_CHECKING:
    from triolet import LLMEngine

__all__ = ["main", "run_batch"]

_COLUMNS = ("batch", "prompt_tokens", "output_tokens", "prefill_tokens_per_s", "decode_tokens_per_s")


def run_batch(
    engine: LLMEngine, *, batch: int, prompt_words: int, max_tokens: int, prompt_index: int
) -> dict[str, Any]:
    """One row. The prefill ends with the step in which the last request gets its first token."""
    from triolet import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for number in range(batch):
        prompt = make_prompt(prompt_index + number, prompt_words)
        engine.add_request(f"{prompt_index}-{number}", prompt, params)
    started = time.perf_counter()
    num_prompt_tokens: dict[str, int] = {}
    num_output_tokens: dict[str, int] = {}
    prefilled, at_prefill = started, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            num_prompt_tokens[output.request_id] = len(output.prompt_token_ids)
            num_output_tokens[output.request_id] = output.num_output_tokens
        if prefilled == started and len(num_output_tokens) == batch:
            prefilled, at_prefill = time.perf_counter(), sum(num_output_tokens.values())
    finished = time.perf_counter()
    prompt_tokens, output_tokens = sum(num_prompt_tokens.values()), sum(num_output_tokens.values())
    decoded = output_tokens - at_prefill
    return {
        "batch": batch,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prefill_tokens_per_s": prompt_tokens / (prefilled - started),
        "decode_tokens_per_s": decoded / (finished - prefilled) if decoded else 0.0,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each batch size after one short batch as warm-up."""
    from triolet import EngineArgs, LLMEngine

    parser = argparse.ArgumentParser(prog="python -m bench.offline", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args(argv)
    args = EngineArgs(
        model=options.model,
        num_threads=options.threads,
        kernels=options.kernels,
        tensor_parallel_size=options.tensor_parallel_size,
    )
    lengths = {"prompt_words": options.prompt_words, "max_tokens": options.max_tokens}
    with LLMEngine(args) as engine:
        run_batch(engine, batch=2, prompt_words=32, max_tokens=8, prompt_index=0)
        rows = [
            run_batch(engine, batch=batch, prompt_index=1000 * (number + 1), **lengths)
            for number, batch in enumerate(options.batch)
        ]
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
