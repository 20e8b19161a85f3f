"""Roles of engine processes without a model, which fail where a prompt holds a certain token."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from anyio.abc import ByteStream
from tests.fakes import FakeRunner, fake_core

from triolet.cluster.client import EngineClient
from triolet.cluster.engine_process import serve_engine
from triolet.cluster.messages import Start
from triolet.core.engine_core import EngineCore
from triolet.core.service import CoreService
from triolet.plan import StepPlan

__all__ = ["BREAK", "HANG", "SEGFAULT", "SLOW", "fake", "hanging_load"]

SEGFAULT, BREAK, HANG, SLOW = 1, 2, 3, 4
"""Tokens that do something to the engine when they are computed. ``BREAK``: nothing works from there on."""


class Device:
    """What a step does besides computing."""

    def __init__(self) -> None:
        self._is_broken = False

    def __call__(self, plan: StepPlan) -> None:
        tokens = {token for row in plan.rows for token in row.request.prompt_token_ids}
        self._is_broken |= BREAK in tokens
        if self._is_broken:
            raise RuntimeError("the device is gone")
        if SEGFAULT in tokens:
            ctypes.string_at(0)
        if HANG in tokens:
            time.sleep(1000)
        if SLOW in tokens:
            time.sleep(0.05)


async def fake(stream: ByteStream) -> int:
    """An engine on a fake runner."""

    def make(start: Start, on_phase: Callable[[str], None]) -> EngineClient:
        def load(on_phase: Callable[[str], None]) -> EngineCore:
            on_phase("loading")
            return fake_core(FakeRunner(fail=Device()))

        return CoreService(load, rank=start.rank, on_phase=on_phase)

    return await serve_engine(stream, make)


async def hanging_load(stream: ByteStream) -> int:
    """An engine whose loading does not end."""

    def make(start: Start, on_phase: Callable[[str], None]) -> EngineClient:
        def load(on_phase: Callable[[str], None]) -> EngineCore:
            on_phase("loading for ever")
            time.sleep(1000)
            raise AssertionError

        return CoreService(load, rank=start.rank, on_phase=on_phase)

    return await serve_engine(stream, make)
