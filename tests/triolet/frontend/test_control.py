"""Pausing, sleep and abort of an engine, as its callers see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes import FakeRunner, fake_client

from triolet import Engine, FinishReason, SamplingParams
from triolet.errors import ConflictError, InvalidRequestError, OverloadedError
from triolet.frontend.stream import RequestStream
from triolet.request import RequestOptions

pytestmark = pytest.mark.anyio


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
async def engine(byte_model: Path, runner: FakeRunner) -> AsyncIterator[Engine]:
    engine = Engine(model=str(byte_model), client_factory=fake_client(runner))
    async with anyio.create_task_group() as task_group:
        await task_group.start(engine.run)
        yield engine
        engine.stop()


async def text_and_end(stream: RequestStream) -> tuple[str, FinishReason | None]:
    outputs = [output async for output in stream]
    return outputs[-1].outputs[0].text, outputs[-1].outputs[0].finish_reason


async def begin(engine: Engine, max_tokens: int = 6) -> RequestStream:
    """A request that has its first token."""
    stream = await engine.submit("abc", SamplingParams(max_tokens=max_tokens))
    await stream.wait_ready()
    return stream


async def test_pause_aborts(engine: Engine) -> None:
    first = await begin(engine, 400)
    await engine.pause()
    text, end = await text_and_end(first)
    assert text.startswith("d")
    assert end is FinishReason.ABORT
    assert engine.is_paused
    second = await engine.submit("abc", SamplingParams(max_tokens=2))
    await anyio.wait_all_tasks_blocked()
    assert engine.statistics().scheduler.num_waiting == 1
    assert engine.health().oldest_waiting_age is not None
    await engine.resume()
    assert await text_and_end(second) == ("de", FinishReason.LENGTH)
    assert engine.statistics().outcomes == {"abort": 1, "length": 1}


async def test_pause_waits(engine: Engine) -> None:
    first = await begin(engine)
    await engine.pause("wait")
    second = await engine.submit("abc", SamplingParams(max_tokens=2))
    assert await text_and_end(first) == ("defghi", FinishReason.LENGTH)
    await engine.resume()
    assert await text_and_end(second) == ("de", FinishReason.LENGTH)


@pytest.mark.parametrize("clear_cache", [True, False])
async def test_pause_keeps(engine: Engine, *, clear_cache: bool) -> None:
    first = await begin(engine, 50)
    await engine.pause("keep", clear_cache=clear_cache)
    assert engine.statistics().ranks[0].is_paused
    assert engine.statistics().scheduler.num_running == (0 if clear_cache else 1)
    await engine.resume()
    assert await text_and_end(first) == (("defghijklmnopqrstuvwxyzabc" * 2)[:50], FinishReason.LENGTH)


@pytest.mark.parametrize("level", [0, 1, 2])
async def test_sleep(engine: Engine, runner: FakeRunner, level: int) -> None:
    first = await begin(engine, 20)
    await engine.sleep(level, "keep")
    assert engine.is_sleeping
    assert engine.statistics().ranks[0].is_sleeping
    assert bool(runner.missing) == (level > 0)
    await engine.wake_up(["weights"])
    assert engine.is_sleeping
    await engine.wake_up()
    assert not engine.is_sleeping
    assert not engine.is_paused
    assert await text_and_end(first) == ("defghijklmnopqrstuvw", FinishReason.LENGTH)


async def test_an_engine_may_end_asleep(engine: Engine) -> None:
    stream = await begin(engine, 20)
    await engine.sleep(mode="keep")
    engine.stop()
    assert (await text_and_end(stream))[1] is FinishReason.ABORT


async def test_abort_by_id(engine: Engine) -> None:
    params = SamplingParams(max_tokens=400)
    streams = [await engine.submit("abc", params, request_id=name) for name in ("a", "b", "c")]
    await engine.abort("a")
    await engine.abort(["b", "unknown"])
    assert [(await text_and_end(stream))[1] for stream in streams[:2]] == [FinishReason.ABORT] * 2
    assert (await text_and_end(streams[2]))[1] is FinishReason.LENGTH
    await engine.abort("a")


async def test_reset_prefix_cache(engine: Engine, runner: FakeRunner) -> None:
    runner.gate.clear()
    stream = await engine.submit("abc", SamplingParams(max_tokens=3))
    await anyio.to_thread.run_sync(runner.is_held.wait)
    assert not await engine.reset_prefix_cache()
    assert await engine.reset_prefix_cache(reset_running_requests=True)
    runner.gate.set()
    assert await text_and_end(stream) == ("def", FinishReason.LENGTH)
    assert await engine.reset_prefix_cache()


async def test_what_is_unknown_is_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="mode: must be one of abort, wait, keep, got 'halt'"):
        await engine.pause("halt")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="level"):
        await engine.sleep(7)
    with pytest.raises(InvalidRequestError, match="tags"):
        await engine.wake_up(["everything"])  # type: ignore[list-item]


async def test_an_engine_that_does_not_serve_is_not_controlled(byte_model: Path) -> None:
    engine = Engine(model=str(byte_model), client_factory=fake_client(FakeRunner()))
    with pytest.raises(RuntimeError, match="runs inside its scope"):
        await engine.pause()
    async with engine:
        engine.begin_drain()
        await engine.pause()
    with pytest.raises(OverloadedError, match="stopped"):
        await engine.resume()


async def test_a_late_request_has_what_there_is(engine: Engine, runner: FakeRunner) -> None:
    async with await engine.submit(
        "abc", SamplingParams(max_tokens=400), options=RequestOptions(timeout=0.5)
    ) as stream:
        await stream.wait_ready()
        runner.gate.clear()
        text, end = await text_and_end(stream)
    assert text.startswith("d")
    assert end is FinishReason.TIMEOUT
    runner.gate.set()
    assert engine.statistics().outcomes == {"timeout": 1}


async def test_an_engine_in_this_process_cannot_be_replaced(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="rank: must be one of 0, got 1") as caught:
        await engine.restart_rank(1)
    assert caught.value.param == "rank"
    for restart in (engine.restart_rank(0), engine.restart_ranks()):
        with pytest.raises(ConflictError, match="--separate-engine gives it one of its own"):
            await restart


class Restartable:
    """Adds to a client what those with processes have."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.restarts: list[tuple[int, float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def restart_rank(self, rank: int, seconds: float) -> None:
        self.restarts.append((rank, seconds))


async def test_engines_in_processes_are_replaced(engine: Engine) -> None:
    client = Restartable(engine._client)
    engine._client = client
    await engine.restart_rank(0, seconds=2.0)
    await engine.restart_ranks()
    assert client.restarts == [(0, 2.0), (0, 30.0)]
