"""An engine and its shards are one: what becomes of it when a shard dies, and of them when it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter

from triolet.args import EngineArgs
from triolet.cluster.shard_launch import ShardLaunch
from triolet.cluster.sharded_service import ShardedService
from triolet.errors import EngineDeadError, JoinError, ModelLoadError
from triolet.runtime.shard_place import ShardPlace

pytestmark = pytest.mark.anyio

ARGS = EngineArgs(tensor_parallel_size=3, num_threads=6)


async def live_on(child: FakeChild, stream: ByteStream) -> int:
    await anyio.sleep_forever()
    return 0


async def failure(
    load: Callable[[ShardPlace], Any], role: Callable[[FakeChild, ByteStream], Any] = live_on
) -> tuple[BaseException, FakeStarter]:
    """What the service raises, and the processes that there were."""
    launch = ShardLaunch.of(ARGS, 0)
    assert launch is not None
    starter = FakeStarter(role)
    service = ShardedService(ARGS, launch, lambda args, place, *_: load(place), starter)
    with pytest.raises(Exception) as caught, anyio.fail_after(30):
        await service.run()
    return caught.value, starter


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(ModelLoadError("no weights"), ModelLoadError), (JoinError("nobody"), EngineDeadError)],
)
async def test_what_the_first_shard_cannot_load_ends_all(raised: Exception, kind: type[Exception]) -> None:
    places: list[ShardPlace] = []

    def load(place: ShardPlace) -> Any:
        places.append(place)
        raise raised

    error, starter = await failure(load)
    assert isinstance(error, kind)
    assert str(error) == str(raised)
    assert (places[0].index, places[0].count, places[0].listener is None) == (0, 3, False)
    assert sorted(child.name for child in starter.children) == ["shard 1 of engine 0", "shard 2 of engine 0"]
    assert all(child.status is not None for child in starter.children)


async def test_a_shard_that_dies_is_the_cause_of_all() -> None:
    is_over = threading.Event()

    def load(place: ShardPlace) -> Any:
        is_over.wait(5)
        raise EngineDeadError("a tensor parallel shard was lost: connection closed by peer")

    async def die(child: FakeChild, stream: ByteStream) -> int:
        if child.name.startswith("shard 2"):
            is_over.set()
            child.kill()
        return await live_on(child, stream)

    error, starter = await failure(load, die)
    assert isinstance(error, EngineDeadError)
    assert str(error) == "shard 2 of engine 0 died: killed by SIGKILL"
    assert all(child.status is not None for child in starter.children)
