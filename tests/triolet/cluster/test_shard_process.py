"""A shard's process as its parent follows it: what it is told, and what its end is told as."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter

from triolet.args import EngineArgs
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.resources import RankResources
from triolet.cluster.shard_process import SHARD_ROLE, run_shard, shard_start
from triolet.errors import EngineDeadError, UsageError
from triolet.runtime.shard_place import ShardPlace

pytestmark = pytest.mark.anyio

PLACE = ShardPlace(
    index=1, count=2, host="127.0.0.1", port=5, join_timeout=1.0, step_timeout=2.0, liveness_timeout=3.0
)
PART = RankResources(num_threads=3, num_sharing=1, environment={"A": "b"})


async def run(serve: Any) -> tuple[Exception | None, FakeChild]:
    async def role(child: FakeChild, stream: ByteStream) -> int:
        child.last_lines = ("it was ill",)
        return await serve_parent(stream, serve)

    starter = FakeStarter(role)
    with anyio.fail_after(30):
        error = await run_shard(shard_start(EngineArgs(), PLACE, PART, 4, 2), PART, starter)
    (child,) = starter.children
    return error, child


async def test_it_is_told_its_place_and_ends_in_order() -> None:
    told: list[Start] = []

    async def serve(link: Link) -> None:
        message = await link.receive()
        assert isinstance(message, Start)
        told.append(message)

    error, child = await run(serve)
    assert error is None
    assert (child.name, child.spec.role) == ("shard 1 of engine 4", SHARD_ROLE)
    assert child.spec.environment == PART.environment
    (start,) = told
    assert ShardPlace(**start.extra["place"]) == PLACE
    assert (start.rank, start.args["num_threads"], start.extra["num_sharing"]) == (4, 3, 2)


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (UsageError("a wrong option", param="dtype"), UsageError, "a wrong option"),
        (ValueError("odd"), EngineDeadError, "shard 1 of engine 4 died: .*odd"),
    ],
)
async def test_what_it_fails_with_is_its_cause(raised: Exception, kind: type[Exception], text: str) -> None:
    async def serve(link: Link) -> None:
        raise raised

    error, _ = await run(serve)
    with pytest.raises(kind, match=text):
        raise error or AssertionError


async def test_a_killed_one_says_by_what_and_what_it_wrote() -> None:
    async def role(child: FakeChild, stream: ByteStream) -> int:
        child.last_lines = ("it was ill",)
        child.kill()
        await anyio.sleep_forever()
        return 0

    with anyio.fail_after(30):
        error = await run_shard(shard_start(EngineArgs(), PLACE, PART, 4, 2), PART, FakeStarter(role))
    assert str(error) == "shard 1 of engine 4 died: killed by SIGKILL; it wrote: it was ill"


async def test_one_that_cannot_be_started_is_dead() -> None:
    class Starter:
        async def run(self, spec: Any, **_: Any) -> int:
            raise OSError("no more processes")

    error = await run_shard(shard_start(EngineArgs(), PLACE, PART, 4, 2), PART, Starter())
    assert str(error) == "the process of shard 1 of engine 4 cannot be started: no more processes"
