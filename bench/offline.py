"""Speed of the engine without HTTP: prompt tokens and generated tokens per second for each batch size.

    python -m bench.offline --batch 1 8 32 --json out.json
    python -m bench.offline --sweep --plot out.svg
    python -m bench.offline --random llama-1b-int4 --limit

``--limit`` adds what memory and processor, measured in the same run, allow at most, and the share of it that
decoding reaches. ``--random`` takes a model with random weights, written for the run. A sweep is of cost
against work: batch sizes of 1 to 64 with short prompts, and 1 and 8 sequences after prompts of 128 to 7,900
words, which takes minutes. Both are plotted, so that a cliff would be seen. It drives
:class:`triolet.LLMEngine` step by step on this thread, so that nothing but the engine is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.plot import plot_sweep
from bench.prompts import make_prompt
from bench.report import print_table, write_json

if TYPE_CHECKING:
    from triolet import LLMEngine

__all__ = ["add_limits", "main", "run_batch", "sweep_shapes"]

_SHORT_PROMPT = 64
_SWEEP_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_TOKENS_PER_WORD = 1.02
_SWEEP_WORDS = (128, 512, 2048, 4096, 7900)

_COLUMNS = ("batch", "prompt_tokens", "output_tokens", "prefill_tokens_per_s", "decode_tokens_per_s")
_LIMIT_COLUMNS = ("limit_tokens_per_s", "share", "read_gb_per_s", "matmul_gflop_per_s")
_SECONDS_OF_CEILINGS = 0.5


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
        "prompt_words": prompt_words,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prefill_tokens_per_s": prompt_tokens / (prefilled - started),
        "decode_tokens_per_s": decoded / (finished - prefilled) if decoded else 0.0,
    }


def sweep_shapes(max_model_len: int, max_tokens: int) -> list[tuple[int, int]]:
    """(batch, words of each prompt) of a sweep, as far as the model's context reaches."""
    by_batch = [(batch, _SHORT_PROMPT) for batch in _SWEEP_BATCHES]
    by_context = [(batch, words) for batch in (1, 8) for words in _SWEEP_WORDS]
    return [
        (batch, words) for batch, words in by_batch + by_context if words * 1.02 + max_tokens < max_model_len
    ]


def add_limits(rows: Sequence[dict[str, Any]], model: str, dtype_name: str) -> None:
    """Put beside each row what the machine, measured now, allows at most."""
    import torch

    from bench.kernels import measure_ceilings
    from bench.limits import most_tokens_per_s, step_work
    from triolet.models.source import resolve_model
    from triolet_kernels.preferred_dtype import preferred_dtype

    is_auto = dtype_name == "auto"
    dtype = preferred_dtype(torch.device("cpu")) if is_auto else getattr(torch, dtype_name)
    work = step_work(resolve_model(model).path, dtype)
    ceilings = measure_ceilings(dtype, _SECONDS_OF_CEILINGS, work.num_bytes)
    for row in rows:
        context = (row["prompt_tokens"] + row["output_tokens"] / 2) / row["batch"]
        most = most_tokens_per_s(work, ceilings, row["batch"], context)
        row |= {
            "limit_tokens_per_s": most,
            "share": row["decode_tokens_per_s"] / most,
            "read_gb_per_s": ceilings.bytes_read / 1e9,
            "matmul_gflop_per_s": ceilings.operations / 1e9,
        }


@contextmanager
def _model(options: argparse.Namespace) -> Iterator[str]:
    """The model that was asked for, written first if it is a random one."""
    if options.random is None:
        yield options.model
        return
    from bench.random_model import RANDOM_MODELS, write_random_model
    from triolet.models.source import resolve_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{options.random}.gguf"
        write_random_model(RANDOM_MODELS[options.random], resolve_model(options.model).path, path)
        yield str(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each batch size after one short batch as warm-up."""
    options = _parse(argv)
    with _model(options) as model:
        rows = _measure(model, options)
        if options.limit:
            add_limits(rows, model, options.dtype)
    print_table(rows, _COLUMNS + (_LIMIT_COLUMNS if options.limit else ()))
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    if options.plot:
        plot_sweep(rows, options.plot)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    from triolet import EngineArgs

    parser = argparse.ArgumentParser(prog="python -m bench.offline", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--random", metavar="NAME", help="random weights, with the tokeniser of --model")
    parser.add_argument("--dtype", choices=["auto", "float32", "bfloat16"], default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--sweep", action="store_true", help="many batch sizes and contexts, not --batch")
    parser.add_argument("--limit", action="store_true", help="what the machine allows, beside each row")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--plot", type=Path, help="draw the rows of a sweep here")
    return parser.parse_args(argv)


def _measure(model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    from triolet import EngineArgs, LLMEngine

    args = EngineArgs(
        model=model,
        dtype=options.dtype,
        num_threads=options.threads,
        kernels=options.kernels,
        tensor_parallel_size=options.tensor_parallel_size,
    )
    with LLMEngine(args) as engine:
        run_batch(engine, batch=2, prompt_words=32, max_tokens=8, prompt_index=0)
        shapes = [(batch, options.prompt_words) for batch in options.batch]
        if options.sweep:
            shapes = sweep_shapes(engine.inputs.max_model_len, options.max_tokens)
        return [
            run_batch(
                engine,
                batch=batch,
                prompt_words=words,
                max_tokens=options.max_tokens,
                prompt_index=1000 * (number + 1),
            )
            for number, (batch, words) in enumerate(shapes)
        ]


if __name__ == "__main__":
    sys.exit(main())
