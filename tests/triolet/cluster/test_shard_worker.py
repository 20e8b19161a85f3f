"""The role of a shard's process: it follows from the place that it is told, and says why it ends."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from anyio.abc import ByteStream
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter
from tests.triolet.cluster.test_shard_process import PART, PLACE

from triolet.args import EngineArgs
from triolet.cluster import shard_worker
from triolet.cluster.messages import Start
from triolet.cluster.shard_process import run_shard, shard_start
from triolet.errors import EngineDeadError, ModelLoadError
from triolet.runtime.shard_place import ShardPlace

pytestmark = pytest.mark.anyio


async def outcome(start: Start) -> Exception | None:
    async def role(_: FakeChild, stream: ByteStream) -> int:
        return await shard_worker.worker(stream)

    return await run_shard(start, PART, FakeStarter(role))


async def test_it_follows_in_a_thread_with_the_options_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[EngineArgs, ShardPlace, int]] = []
    monkeypatch.setattr(shard_worker, "_follow", lambda *arguments: calls.append(arguments))
    assert await outcome(shard_start(EngineArgs(model="m", dtype="float32"), PLACE, PART, 0, 2)) is None
    ((args, place, num_sharing),) = calls
    assert (args.model, args.dtype, args.num_threads) == ("m", "float32", PART.num_threads)
    assert (place, num_sharing) == (PLACE, 2)


async def test_what_the_model_fails_with_reaches_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ModelLoadError("no weights")

    monkeypatch.setattr(shard_worker, "_follow", fail)
    error = await outcome(shard_start(EngineArgs(), PLACE, PART, 0, 2))
    assert isinstance(error, ModelLoadError)
    assert str(error) == "no weights"


async def test_a_start_of_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_worker, "_follow", lambda *_: pytest.fail("it followed"))
    extra = {"place": asdict(PLACE) | {"colour": "red"}, "num_sharing": 2, "log_level": 20}
    error = await outcome(Start("shard", {}, 0, 0, b"", extra))
    assert isinstance(error, EngineDeadError)
    assert "colour" in str(error)
