"""A runner that computes nothing gives as many tokens as are asked for, and takes the time it is told to."""

from __future__ import annotations

import time

from bench.free_engine import FreeRunner

from triolet.args import EngineArgs
from triolet.core.engine_core import build_core
from triolet.request import FinishReason, Request


def run(runner: FreeRunner, *lengths: int) -> dict[int, int]:
    """How many tokens each request gets, with a prompt of ten tokens."""
    core = build_core(runner, EngineArgs())
    prompt = tuple(range(10))
    core.add(*(Request(request_id=n, prompt_token_ids=prompt, max_tokens=count, seed=0)
               for n, count in enumerate(lengths)))  # fmt: skip
    counts = dict.fromkeys(range(len(lengths)), 0)
    while core.has_unfinished:
        for output in core.step():
            counts[output.request_id] += len(output.token_ids)
            assert output.finish_reason in (None, FinishReason.LENGTH)
    core.close()
    return counts


def test_requests_get_their_tokens() -> None:
    assert run(FreeRunner(EngineArgs()), 3, 1, 20) == {0: 3, 1: 1, 2: 20}


def test_paced_steps_take_time_for_each_token() -> None:
    started = time.perf_counter()
    run(FreeRunner(EngineArgs(), step_seconds=0.01, token_seconds=0.002), 3)
    assert time.perf_counter() - started >= 3 * 0.01 + 12 * 0.002
