"""What structured outputs cost: microseconds a token, and as a share of a step.

    python -m bench.grammars --batch 32

For each kind of grammar and each way to sample, requests follow it side by side. What is counted is all that
the sampler does for their grammars: checks, masks, draws beyond the one that each token would have had
without a grammar, and the acceptance of tokens. That one draw is measured beside it and taken off. A step is
the mean time between two steps of the same run, without what measuring took.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bench.report import print_table, write_json

if TYPE_CHECKING:
    from triolet import LLM

__all__ = ["SAMPLING", "SPECS", "main", "measure"]

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
PROMPTS = {
    "json schema": 'Describe a person as JSON: {"name": "Ada", "age": 36, "email": ',
    "json object": "Write a JSON object that describes a city.\n",
    "regex of digits": "Phone numbers: 555-1234;555-9876;",
    "regex of words": "the quick brown fox and the small dog went to the river ",
    "lark": "Sums: 1+2-3+(4-5)\n",
}
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "top-p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "top-k 50": {"temperature": 1.0, "top_k": 50},
    "min-p 0.1": {"temperature": 1.0, "min_p": 0.1},
    "top-k 50, top-p 0.95": {"temperature": 1.0, "top_k": 50, "top_p": 0.95},
    "0.2, top-p 0.9": {"temperature": 0.2, "top_p": 0.9},
}
_COLUMNS = ("grammar", "sampling", "batch", "step_ms", "masked_percent", "us_per_token", "share_percent")


@dataclass(slots=True)
class _Times:
    """Seconds, and how many tokens were drawn and masked."""

    began: list[float] = field(default_factory=list)
    held: float = 0.0
    plain: float = 0.0
    num_tokens: int = 0
    num_masked: int = 0


def measure(llm: LLM, name: str, sampling: str, *, batch: int, max_tokens: int) -> dict[str, Any]:
    """One row of the table."""
    from triolet import SamplingParams, StructuredOutputs

    chosen = {"top_p": 1.0, "top_k": 0, "min_p": 0.0} | SAMPLING[sampling]
    params = [
        SamplingParams(
            structured_outputs=StructuredOutputs(**SPECS[name]), max_tokens=max_tokens, seed=seed, **chosen
        )
        for seed in range(batch)
    ]
    with _timed() as times:
        llm.generate([PROMPTS[name]] * batch, params, use_tqdm=False)
    num_steps = len(times.began) - 1
    step = (times.began[-1] - times.began[0] - times.plain) / num_steps
    seconds = times.held - times.plain
    return {
        "grammar": name, "sampling": sampling, "batch": batch, "step_ms": step * 1e3,
        "masked_percent": 100 * times.num_masked / times.num_tokens,
        "us_per_token": seconds / times.num_tokens * 1e6,
        "share_percent": 100 * seconds / (step * (num_steps + 1)), "spec": json.dumps(SPECS[name]),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each kind of grammar with each way to sample."""
    from triolet import LLM, EngineArgs

    parser = argparse.ArgumentParser(prog="python -m bench.grammars", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EngineArgs().model)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", choices=SPECS, nargs="*", default=list(SPECS))
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args(argv)
    rows = []
    with LLM(model=options.model, num_threads=options.threads) as llm:
        for name in options.only:
            measure(llm, name, "greedy", batch=2, max_tokens=4)
            rows += [
                measure(llm, name, sampling, batch=options.batch, max_tokens=options.tokens)
                for sampling in SAMPLING
            ]
    print_table(rows, _COLUMNS)
    if options.json:
        write_json(options.json, rows, command=sys.argv)
    return 0


@contextmanager
def _timed() -> Iterator[_Times]:
    """Measure what the sampler does for grammars, by standing in for the functions that do it."""
    from triolet.runtime import sampler
    from triolet.runtime.draw_settings import draw_settings
    from triolet.runtime.grammar_draws import draw_held
    from triolet.runtime.grammar_masks import GrammarMasks

    times, commit, make_mask = _Times(), GrammarMasks.commit, GrammarMasks._make_mask

    def timed_draw(grammars: Any, ops: Any, logits: Any, rows: Any, **options: Any) -> Any:
        times.began.append(time.perf_counter())
        times.num_tokens += len(logits)
        ops.draw(logits, draw_settings(rows))
        began = time.perf_counter()
        times.plain += began - times.began[-1]
        drawn = draw_held(grammars, ops, logits, rows, **options)
        times.held += time.perf_counter() - began
        return drawn

    def timed_commit(self: GrammarMasks, *arguments: Any) -> Any:
        began = time.perf_counter()
        result = commit(self, *arguments)
        times.held += time.perf_counter() - began
        return result

    def counted_mask(self: GrammarMasks, slot: int) -> Any:
        times.num_masked += 1
        return make_mask(self, slot)

    with ExitStack() as patches:
        patches.enter_context(patch.object(sampler, "draw_held", timed_draw))
        patches.enter_context(patch.object(GrammarMasks, "commit", timed_commit))
        patches.enter_context(patch.object(GrammarMasks, "_make_mask", counted_mask))
        yield times


if __name__ == "__main__":
    sys.exit(main())
