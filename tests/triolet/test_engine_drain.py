"""An engine that leaves in phases."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.fakes import FakeRunner, fake_client

from triolet import Engine, SamplingParams
from triolet.errors import OverloadedError
from triolet.statistics import EngineState

pytestmark = pytest.mark.anyio


def make(byte_model: Path) -> Engine:
    return Engine(model=str(byte_model), client_factory=fake_client(FakeRunner()))


async def test_drain_refuses_new_work_and_finishes_the_old(byte_model: Path) -> None:
    async with make(byte_model) as engine:
        stream = await engine.submit("abc", SamplingParams(max_tokens=10))
        engine.begin_drain()
        assert engine.state is EngineState.DRAINING
        with pytest.raises(OverloadedError) as caught:
            await engine.submit("abc")
        assert caught.value.status == 503
        assert [output async for output in stream][-1].outputs[0].text == "defghijklm"
        await engine.wait_idle()


async def test_drain_returns_when_all_is_done(byte_model: Path) -> None:
    async with make(byte_model) as engine:
        stream = await engine.submit("abc", SamplingParams(max_tokens=30))
        with anyio.fail_after(30):
            await engine.drain()
        assert engine.statistics().outcomes == {"length": 1}
        assert (await anext(stream)).is_finished


async def test_drain_while_loading_takes_no_request_ever(byte_model: Path) -> None:
    engine = make(byte_model)
    engine.begin_drain()
    assert engine.state is EngineState.STARTING
    async with engine:
        assert engine.state is EngineState.DRAINING
        with pytest.raises(OverloadedError) as caught:
            await engine.submit("abc")
        assert caught.value.status == 503
        await engine.wait_idle()
