"""An engine with nothing to do uses no CPU, whatever was done before."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from tests.fakes import FakeRunner, fake_client

from triolet import Engine, SamplingParams
from triolet.request import RequestOptions

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def seconds_used_in_a_second() -> float:
    """Of CPU, by the whole process."""
    before = time.process_time()
    await anyio.sleep(1)
    return time.process_time() - before


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_second_of_idling_costs_no_cpu(byte_model: Path, *, is_paused: bool) -> None:
    runner = FakeRunner()
    options = RequestOptions(timeout=3600)
    params = SamplingParams(max_tokens=20)
    async with Engine(model=str(byte_model), client_factory=fake_client(runner, depth=2)) as engine:
        async for _ in engine.generate("abc", params, options=options):
            pass
        if is_paused:
            await engine.pause("keep")
            stream = await engine.submit("abc", params, options=options)
        await anyio.wait_all_tasks_blocked()
        num_steps = runner.num_steps
        used = [await seconds_used_in_a_second()]
        while used[-1] > 0.02 and len(used) < 3:  # what earlier tests left may be collected meanwhile
            used.append(await seconds_used_in_a_second())
        assert min(used) < 0.02
        assert runner.num_steps == num_steps
        if is_paused:
            stream.abort()
