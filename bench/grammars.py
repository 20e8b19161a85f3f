"""What structured outputs cost: microseconds a token, and as a share of a step.

    python -m bench.grammars --batch 32

For each kind of grammar, all sequences of a batch follow it side by side for some steps: masks are made, put
on logits, and the chosen tokens accepted, by the code that the engine runs. The chosen tokens are random
allowed ones, which are harder on a grammar than a model's. The step they are a share of is the engine's own
for that batch, without grammars, in the same run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.offline import run_batch
from bench.report import percentile, print_table, write_json

if TYPE_CHECKING:
    from triolet import LLMEngine
    from triolet.plan import PlanRow

__all__ = ["SPECS", "main", "measure"]

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "format": "email"},
        "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "email", "born", "tags"],
    "additionalProperties": False,
}
SPECS: dict[str, dict[str, Any]] = {
    "json schema": {"json": _PERSON},
    "json object": {"json_object": True},
    "regex of digits": {"regex": "([0-9]{3}-[0-9]{4};){1,50}"},
    "regex of words": {"regex": "([a-z]{2,10} ){20,200}"},
    "lark": {"grammar": 'start: sum\nsum: term (("+" | "-") term)*\nterm: /[0-9]+/ | "(" sum ")"'},
}
_COLUMNS = ("grammar", "batch", "us_per_token", "p99_us_per_step", "step_ms", "share_percent")


def measure(
    engine: LLMEngine, spec: dict[str, Any], *, batch: int, num_steps: int, seed: int = 0
) -> list[float]:
    """Seconds that the grammars of a batch took in each of some steps; a sequence that ends begins anew."""
    from triolet.runtime.grammar_masks import GrammarMasks
    from triolet.sampling_params import SamplingParams, StructuredOutputs
    from triolet.text.constraints import GrammarConstraints
    from triolet.text.grammar_tokenizer import grammar_tokenizer

    tokenizer = engine.inputs.tokenizer
    vocab_size = engine.inputs.vocab_size
    constraints = GrammarConstraints(lambda: grammar_tokenizer(tokenizer, vocab_size))
    masks = GrammarMasks(vocab_size, constraints)
    params = SamplingParams(structured_outputs=StructuredOutputs(**spec))
    request = engine.inputs.prepare([1], params).requests[0]
    rows = [_row(request, slot) for slot in range(batch)]
    masks.begin(rows)
    generator, seconds = random.Random(seed), []
    logits = np.empty((batch, vocab_size), np.float32)
    for _ in range(num_steps):
        logits.fill(0)
        began = time.perf_counter()
        errors = masks.apply(logits, rows)
        applied = time.perf_counter() - began
        if errors:
            raise RuntimeError(f"a grammar failed: {errors}")
        chosen = [int(generator.choice(np.flatnonzero(np.isfinite(row)))) for row in logits]
        began = time.perf_counter()
        for row, token_id in zip(rows, chosen, strict=True):
            masks.commit(row, (token_id,))
        seconds.append(applied + time.perf_counter() - began)
        masks.begin(
            [row for row, token_id in zip(rows, chosen, strict=True) if token_id in tokenizer.eos_token_ids]
        )
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each kind of grammar after one step of the engine to hold it against."""
    from triolet import EngineArgs, LLMEngine

    parser = argparse.ArgumentParser(prog="python -m bench.grammars", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args(argv)
    with LLMEngine(EngineArgs(model=options.model, num_threads=options.threads)) as engine:
        run_batch(engine, batch=2, prompt_words=32, max_tokens=8, prompt_index=0)
        plain = run_batch(engine, batch=options.batch, prompt_words=20, max_tokens=48, prompt_index=1000)
        step = options.batch / plain["decode_tokens_per_s"]
        rows = []
        for name, spec in SPECS.items():
            seconds = measure(engine, spec, batch=options.batch, num_steps=options.steps)
            mean = sum(seconds) / len(seconds)
            rows.append({
                "grammar": name, "batch": options.batch, "us_per_token": mean / options.batch * 1e6,
                "p99_us_per_step": percentile(seconds, 99) * 1e6, "step_ms": step * 1e3,
                "share_percent": 100 * mean / step, "spec": json.dumps(spec),
            })  # fmt: skip
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    return 0


def _row(request: Any, slot: int) -> PlanRow:
    from triolet.plan import PlanRow

    return PlanRow(
        request=request, slot=slot, start=0, num_tokens=1, token_ids=(1,), first_new_block=0,
        new_block_ids=((),), is_sampled=True, history=(1,),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
