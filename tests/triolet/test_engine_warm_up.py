"""What only the first grammar would have to wait for is made once an engine is ready, beside all else."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes import FakeRunner, fake_client

from triolet import Engine, SamplingParams
from triolet.args import EngineArgs
from triolet.core.engine_core import build_core
from triolet.core.service import CoreService
from triolet.statistics import EngineState
from triolet.text.grammar import GrammarCompiler

pytestmark = pytest.mark.anyio


class NotedConstraints:
    """Notes that it is warmed up and closed."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def warm_up(self) -> None:
        self.told.append("warm")

    def close(self) -> None:
        self.told.append("closed")


async def test_requests_and_the_end_of_an_engine_do_not_wait_for_it(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def warm_up(self: GrammarCompiler) -> None:
        has_begun.set()
        assert may_end.wait(60)

    monkeypatch.setattr(GrammarCompiler, "warm_up", warm_up)
    try:
        async with Engine(model=str(byte_model), client_factory=fake_client(FakeRunner())) as engine:
            async for _ in engine.generate("abc", SamplingParams(max_tokens=2)):
                pass
            assert await anyio.to_thread.run_sync(has_begun.wait, 60)
        assert engine.state is EngineState.STOPPED
    finally:
        may_end.set()


async def test_a_core_is_warmed_up_when_it_has_started() -> None:
    noted: Any = NotedConstraints()
    service = CoreService(lambda on_phase: build_core(FakeRunner(), EngineArgs(), noted))
    async with anyio.create_task_group() as group:
        await group.start(service.run)
        await anyio.wait_all_tasks_blocked()
        assert noted.told == ["warm"]
        group.cancel_scope.cancel()
    assert noted.told == ["warm", "closed"]
