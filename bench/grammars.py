"""What structured outputs cost: microseconds a token, and as a share of a step.

    python -m bench.grammars --batch 32

For each kind of grammar, all sequences of a batch follow it side by side for some steps, by the code that the
engine runs. The tokens are random allowed ones, which are harder on a grammar than a model's. It is measured
twice: where what the model drew without a mask is allowed and stands, and where each row needs a mask and is
drawn again. A model is between the two, near the first if it writes what it is asked for. The step they are a
share of is the engine's own for that batch, without grammars, in the same run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.offline import run_batch
from bench.report import print_table, write_json

if TYPE_CHECKING:
    from triolet import LLMEngine
    from triolet.plan import PlanRow
    from triolet.runtime.grammar_masks import GrammarMasks

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
_COLUMNS = (
    "grammar", "batch", "step_ms", "us_per_token", "share_percent", "us_per_masked_token",
    "share_if_all_masked_percent",
)  # fmt: skip


def measure(
    engine: LLMEngine,
    spec: dict[str, Any],
    *,
    batch: int,
    num_steps: int,
    is_masked: bool,
    num_threads: int | None = None,
    seed: int = 0,
) -> list[float]:
    """Seconds that the grammars of a batch took in each of some steps; a sequence that ends begins anew.

    ``is_masked``: every row needs a mask, and is drawn again.
    """
    import torch

    from triolet.runtime.draw_settings import draw_settings, redraw_settings
    from triolet.sampling_params import SamplingParams, StructuredOutputs
    from triolet_kernels.ops import select_ops

    ops = select_ops(torch.device("cpu"), num_threads=num_threads)
    params = SamplingParams(structured_outputs=StructuredOutputs(**spec))
    request = engine.inputs.prepare([1], params).requests[0]
    rows = [_row(request, slot) for slot in range(batch)]
    masks, twin = _grammar_masks(engine), _grammar_masks(engine)
    for followed in (masks, twin):
        followed.begin(rows)
    settings, generator, seconds = draw_settings(rows), random.Random(seed), []
    nothing, unseen, everything = [None] * batch, [False] * batch, np.arange(batch)
    logits = torch.empty(batch, engine.inputs.vocab_size)
    for _ in range(num_steps):
        logits.zero_()
        # Chosen by another follower: to ask for a mask makes the next one of the same state cheap.
        chosen = [_any_allowed(mask, generator) for mask in twin.check(rows, nothing, unseen).masks]
        began = time.perf_counter()
        checked = masks.check(rows, nothing if is_masked else chosen, unseen)
        if is_masked:
            ops.draw_masked(
                logits, redraw_settings(rows, settings, everything), everything, np.stack(checked.masks)
            )
        for row, token_id in zip(rows, chosen, strict=True):
            masks.commit(row, (token_id,))
        seconds.append(time.perf_counter() - began)
        if checked.errors or bool(checked.positions) != is_masked:
            raise RuntimeError(f"a grammar failed: {checked.errors}")
        for row, token_id in zip(rows, chosen, strict=True):
            twin.commit(row, (token_id,))
        ended = [
            row
            for row, token_id in zip(rows, chosen, strict=True)
            if token_id in engine.inputs.tokenizer.eos_token_ids
        ]
        for followed in (masks, twin):
            followed.begin(ended)
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
            standing, masked = (
                statistics.mean(
                    measure(
                        engine, spec, batch=options.batch, num_steps=options.steps, is_masked=is_masked,
                        num_threads=options.threads,
                    )
                )
                for is_masked in (False, True)
            )  # fmt: skip
            rows.append({
                "grammar": name, "batch": options.batch, "step_ms": step * 1e3,
                "us_per_token": standing / options.batch * 1e6, "share_percent": 100 * standing / step,
                "us_per_masked_token": masked / options.batch * 1e6,
                "share_if_all_masked_percent": 100 * masked / step, "spec": json.dumps(spec),
            })  # fmt: skip
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    return 0


def _grammar_masks(engine: LLMEngine) -> GrammarMasks:
    from triolet.runtime.grammar_masks import GrammarMasks
    from triolet.text.constraints import GrammarConstraints
    from triolet.text.grammar_tokenizer import grammar_tokenizer

    tokenizer, vocab_size = engine.inputs.tokenizer, engine.inputs.vocab_size
    return GrammarMasks(vocab_size, GrammarConstraints(lambda: grammar_tokenizer(tokenizer, vocab_size)))


def _any_allowed(mask: NDArray[np.int32], generator: random.Random) -> int:
    return int(generator.choice(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))))


def _row(request: Any, slot: int) -> PlanRow:
    from triolet.plan import PlanRow

    return PlanRow(
        request=request, slot=slot, start=0, num_tokens=1, token_ids=(1,), first_new_block=0,
        new_block_ids=((),), is_sampled=True, history=(1,),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
