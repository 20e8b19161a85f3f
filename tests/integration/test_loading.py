"""Leaving while the real model loads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import anyio
import pytest

from triolet import Engine
from triolet.core.service import CoreService

pytestmark = [pytest.mark.anyio, pytest.mark.model]


async def test_leaving_while_the_model_loads_takes_less_than_half_a_second(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="triolet")
    has_begun, gate = threading.Event(), threading.Event()
    tell_phase = CoreService._tell_phase

    def tell(service: CoreService, phase: str) -> None:
        tell_phase(service, phase)
        if phase == "loading weights":
            has_begun.set()
            assert gate.wait(30)

    async def enter() -> None:
        async with Engine(model=str(smollm2_path)):
            raise AssertionError("it was not to get as far as this")

    monkeypatch.setattr(CoreService, "_tell_phase", tell)
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(enter)
        await anyio.to_thread.run_sync(has_begun.wait)
        began = time.monotonic()
        task_group.cancel_scope.cancel()
        gate.set()
    assert time.monotonic() - began < 5
    assert "loading weights" in caplog.messages
    assert "warming up" not in caplog.messages
