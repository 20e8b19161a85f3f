"""After thousands of requests that ended in every way, nothing is held that was not held before."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.fakes import FakeRunner, fake_client
from tests.leaks.census import Census, cyclic_garbage, resident_bytes, take_census
from tests.leaks.workload import OPTIONS, POISON, run_wave

from triolet import Engine
from triolet.core.service import CoreService
from triolet.plan import StepPlan

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WARM_UP = 10
"""Waves until everything that is made once has been made."""


@pytest.fixture(autouse=True)
def _no_collection_by_itself() -> Iterator[None]:
    """Cyclic garbage is to be seen, not to be swept away."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def poisoned(plan: StepPlan) -> None:
    if any(row.request.prompt_token_ids == tuple(POISON.encode()) for row in plan.rows):
        raise RuntimeError("poison")


async def check(engine: Engine, runner: FakeRunner | None, *, num_waves: int, max_growth: int) -> None:
    """Run waves of requests and count; ``max_growth`` is in bytes, over the second half."""
    expected: Counter[str] = Counter()
    for _ in range(WARM_UP):
        expected += await run_wave(engine, runner)
    before = take_census()
    for _ in range(num_waves // 2):
        expected += await run_wave(engine, runner)
    resident = resident_bytes()
    for _ in range(num_waves // 2):
        expected += await run_wave(engine, runner)
    growth = resident_bytes() - resident
    assert cyclic_garbage() == Counter()
    assert growth < max_growth
    await check_no_more(before)
    check_books(engine, expected)


async def check_no_more(before: Census) -> None:
    """A thread may hold what it handed over until it has its next turn: that is waited for."""
    with anyio.move_on_after(10):
        while not take_census().objects <= before.objects:  # noqa: ASYNC110 - a thread tells nobody
            await anyio.sleep(0.01)
    after = take_census()
    assert after.objects <= before.objects
    assert after.num_tasks <= before.num_tasks
    assert after.num_files <= before.num_files
    assert after.threads <= before.threads
    assert after.children <= before.children


def check_books(engine: Engine, expected: Counter[str]) -> None:
    statistics = engine.statistics()
    assert Counter(statistics.outcomes) == expected, "every request is counted with its outcome"
    assert (statistics.scheduler.num_running, statistics.scheduler.num_waiting) == (0, 0)
    assert statistics.scheduler.num_free_blocks == statistics.scheduler.num_blocks
    assert isinstance(engine._client, CoreService)
    engine._client.core.check_integrity()


async def test_two_thousand_requests(
    byte_model: Path, caplog: pytest.LogCaptureFixture, anyio_backend: str
) -> None:
    caplog.set_level("CRITICAL")  # what is caught of the log is kept, with its exceptions and their frames
    runner = FakeRunner(fail=poisoned)
    async with Engine(model=str(byte_model), client_factory=fake_client(runner), **OPTIONS) as engine:
        await check(engine, runner, num_waves=70, max_growth=4 << 20)
    assert runner.is_closed


async def test_two_thousand_requests_on_a_real_model(byte_llama: Path) -> None:
    options = OPTIONS | {"num_kv_blocks": 64, "num_threads": 1}
    async with Engine(model=str(byte_llama), **options) as engine:
        await check(engine, None, num_waves=64, max_growth=8 << 20)


async def test_what_an_engine_held_is_back_when_its_scope_ends(byte_model: Path) -> None:
    """Over and over: engines, too, leave nothing."""

    async def use_and_leave() -> None:
        async with Engine(model=str(byte_model), client_factory=fake_client(FakeRunner())) as engine:
            async for _ in engine.generate("abc"):
                break

    await use_and_leave()
    before = take_census()
    for _ in range(5):
        await use_and_leave()
    await check_no_more(before)
