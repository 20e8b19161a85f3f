"""Engines that compute nothing, to measure what all around them costs; and paced ones, to see who waits.

Both are real engine cores around a runner without a model, in the same processes as real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from anyio.abc import ByteStream

from triolet.args import EngineArgs
from triolet.cluster.client import EngineClient
from triolet.cluster.messages import Start
from triolet.cluster.rank_args import rank_args
from triolet.core.engine_core import EngineCore, build_core
from triolet.core.service import CoreService
from triolet.plan import LayerGroup, StepPlan, StepResult

__all__ = ["FreeRunner", "free", "paced", "serve", "steady"]

NUM_BLOCKS = 8192
MAX_MODEL_LEN = 16_384
TOKEN = 97
STEP_SECONDS = 0.002
TOKEN_SECONDS = 30e-6
"""How long a paced step takes, and how much longer for each token that is computed in it."""
STEADY_SECONDS = 0.01
"""How long a steady step takes: so long that nothing is waiting when it ends."""


class FreeRunner:
    """A model runner whose tokens are all the same, and whose steps take no longer than they are told to."""

    def __init__(self, args: EngineArgs, *, step_seconds: float = 0.0, token_seconds: float = 0.0) -> None:
        self.block_size = args.block_size
        self.layer_groups = (LayerGroup(num_blocks=NUM_BLOCKS),)
        self.max_model_len = MAX_MODEL_LEN
        self.vocab_size = 2**18
        self._step_seconds = step_seconds
        self._token_seconds = token_seconds

    def execute(self, plan: StepPlan) -> StepResult:
        if self._step_seconds:
            num_tokens = sum(row.num_tokens for row in plan.rows)
            time.sleep(self._step_seconds + num_tokens * self._token_seconds)
        num_sampled = sum(row.is_sampled for row in plan.rows)
        return StepResult(
            step_id=plan.step_id,
            token_ids=((TOKEN,),) * num_sampled,
            logprobs=(None,) * num_sampled,
            errors={},
        )

    def probe(self) -> None:
        """There is nothing that could be out of order."""

    def release(self) -> None:
        """There is nothing to give back."""

    def restore(self, part: str) -> None:
        """Nor to take back."""

    def close(self) -> None:
        """Nor to close."""


async def free(stream: ByteStream) -> int:
    """The role of an engine process whose steps take no time."""
    return await _serve_engine(stream)


async def paced(stream: ByteStream) -> int:
    """The same where steps take time."""
    return await _serve_engine(stream, step_seconds=STEP_SECONDS, token_seconds=TOKEN_SECONDS)


async def steady(stream: ByteStream) -> int:
    """The same where all steps take as long as that of a middling model on an accelerator."""
    return await _serve_engine(stream, step_seconds=STEADY_SECONDS)


async def _serve_engine(stream: ByteStream, **pace: float) -> int:
    from triolet.cluster.engine_process import serve_engine

    def make(start: Start, on_phase: Callable[[str], None]) -> EngineClient:
        args = rank_args(start.args)

        def load(on_phase: Callable[[str], None]) -> EngineCore:
            return build_core(FreeRunner(args, **pace), args)

        return CoreService(load, rank=start.rank, on_phase=on_phase)

    return await serve_engine(stream, make)


def serve(role: str, arguments: Sequence[str]) -> int:
    """``python -m server`` with engines that are ``free`` or ``paced`` instead of what they would be.

    An engine in the process of the server is always free.
    """
    from triolet.cli import serve_main
    from triolet.cluster import client
    from triolet.cluster.processes import ProcessSpec, SubprocessStarter
    from triolet.cluster.rank_supervisor import ENGINE_ROLE

    run = SubprocessStarter.run

    async def run_instead(starter: SubprocessStarter, spec: ProcessSpec, **status: Any) -> int:
        if spec.role == ENGINE_ROLE:
            spec = replace(spec, role=f"bench.free_engine:{role}")
        return await run(starter, spec, **status)

    def load_free_core(args: EngineArgs, *_: Any) -> EngineCore:
        return build_core(FreeRunner(args), args)

    SubprocessStarter.run = run_instead  # type: ignore[assignment,method-assign]
    client.load_core = load_free_core  # type: ignore[attr-defined,assignment]
    return serve_main(arguments)
