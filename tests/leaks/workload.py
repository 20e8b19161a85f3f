"""Requests that end in every way there is, a wave at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
from tests.fakes import FakeRunner

from triolet import BeamSearchParams, Engine, RequestOptions, RequestOutputKind, SamplingParams
from triolet.errors import EngineGenerateError, InvalidRequestError, OverloadedError
from triolet.frontend.preparation import LONG_PROMPT
from triolet.frontend.stream import RequestStream

__all__ = ["OPTIONS", "POISON", "run_wave"]

POISON = "poison"
"""A prompt that a fake runner is to fail at."""


async def _read_all(stream: RequestStream) -> None:
    async for _ in stream:
        pass


async def _abort(stream: RequestStream) -> None:
    await anext(stream)
    stream.abort()


async def _let_go(stream: RequestStream) -> None:
    await anext(stream)


async def _raise_in_scope(stream: RequestStream) -> None:
    try:
        async with stream:
            await anext(stream)
            raise KeyError
    except KeyError:
        pass


async def _be_cancelled(stream: RequestStream) -> None:
    with anyio.CancelScope() as scope:
        async for _ in stream:
            scope.cancel()


async def _leave_unread(stream: RequestStream) -> None:
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    stream.abort()


@dataclass(frozen=True)
class Case:
    """What is asked, what is done with the answer, the outcome, and how to serve it."""

    params: SamplingParams | BeamSearchParams
    consume: Callable[[RequestStream], Coroutine[Any, Any, None]]
    outcome: str
    options: RequestOptions | None = None

    @property
    def num_queued(self) -> int:
        """Places it takes in the queue."""
        return self.params.n if isinstance(self.params, SamplingParams) else 1


LONG = SamplingParams(max_tokens=40, output_kind=RequestOutputKind.DELTA, logprobs=0, ignore_eos=True)
SHORT = LONG.replace(max_tokens=6)
WHOLE = SHORT.replace(output_kind=RequestOutputKind.FINAL_ONLY)
STOPPING = LONG.replace(stop=("\ufffd", *"abcdefghijklmno"))
BEAMS = BeamSearchParams(beam_width=2, max_tokens=4, ignore_eos=True)

CASES = [
    Case(WHOLE, _read_all, "length"),
    Case(SHORT, _read_all, "length"),
    Case(STOPPING, _read_all, "stop"),
    Case(LONG, _abort, "abort"),
    Case(LONG, _let_go, "abort"),
    Case(LONG, _raise_in_scope, "abort"),
    Case(LONG, _be_cancelled, "abort"),
    Case(SHORT.replace(n=3), _read_all, "length"),
    Case(WHOLE.replace(n=2, prompt_logprobs=1), _read_all, "length"),
    Case(LONG.replace(n=3), _abort, "abort"),
    Case(LONG, _read_all, "timeout", RequestOptions(timeout=1e-6)),
    Case(LONG.replace(n=2), _read_all, "timeout", RequestOptions(queue_timeout=1e-6)),
    Case(LONG.replace(stop_criteria=(lambda ids, text: len(ids) == 3,)), _read_all, "stop"),
    Case(BEAMS, _leave_unread, "abort"),
    Case(BEAMS, _read_all, "length"),
]

NUM_SLOTS = 4
NUM_REQUESTS = 1 + sum(case.num_queued for case in CASES) + 2
"""As many as there is room for."""

OPTIONS: dict[str, Any] = {
    "max_num_seqs": NUM_SLOTS,
    "max_num_batched_tokens": 16,
    "max_num_queued_requests": NUM_REQUESTS - NUM_SLOTS,
    "seed": 0,
}
"""Options of an engine for these waves."""


async def run_wave(engine: Engine, runner: FakeRunner | None) -> Counter[str]:
    """Run one request of each kind; → the outcomes that the engine should have counted.

    A fake runner is held while requests are put into the queue, so that it is known where they are.
    """
    if runner is not None:
        runner.gate.clear()
    prefilling = await engine.submit("x" * 60, LONG)
    while not engine.statistics().scheduler.num_running:
        await anyio.lowlevel.checkpoint()
    streams = [await engine.submit("abc", case.params, options=case.options) for case in CASES]
    queued = [await engine.submit("abc", LONG) for _ in range(2)]
    await _expect("abc", OverloadedError, engine)
    await _expect("", InvalidRequestError, engine)
    prefilling.abort()
    queued.pop().abort()
    queued.clear()  # the other is let go
    if runner is not None:
        runner.gate.set()
    async with anyio.create_task_group() as task_group:
        for case in CASES:
            task_group.start_soon(case.consume, streams.pop(0))
        task_group.start_soon(_break_out, engine)
    await engine.wait_idle()
    await _expect("y" * (LONG_PROMPT + 1), InvalidRequestError, engine)
    outcomes = Counter(case.outcome for case in CASES)
    outcomes += Counter({"abort": 4, "refused": 1, "invalid": 2, "length": 1})
    if runner is not None:
        await _expect(POISON, EngineGenerateError, engine)
        outcomes["failed"] += 1
    await _read_all(await engine.submit("abc", SHORT))  # then no step is under way any more
    return outcomes


async def _expect(prompt: str, error: type[Exception], engine: Engine) -> None:
    try:
        await anext(engine.generate(prompt))
    except error:
        return
    raise AssertionError(f"{error.__name__} was to be raised")


async def _break_out(engine: Engine) -> None:
    async for _ in engine.generate("abc", LONG):
        break
