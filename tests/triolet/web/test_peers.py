"""What is to happen on all servers of the same engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine

from triolet.args import ServeArgs
from triolet.errors import EngineError
from triolet.web.app import create_app
from triolet.web.peers import NoPeers, do_everywhere

ADMIN = {"Authorization": "Bearer root"}


class FakePeers:
    """One other server, which answers ``answer`` to everything."""

    def __init__(self, answer: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.seconds: list[float] = []
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {}
        self._answer = answer

    def answer(self, answers: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self.answers.update(answers)

    async def call_peers(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        self.calls.append((method, *arguments))
        self.seconds.append(seconds)
        return [self._answer]


@pytest.mark.anyio
async def test_here_and_there() -> None:
    async def here(number: int) -> int:
        return number

    assert await do_everywhere(NoPeers(), "count", here, 3) == [3]
    peers = FakePeers(4)
    assert sorted(await do_everywhere(peers, "count", here, 3)) == [3, 4]
    assert peers.calls == [("count", 3)]


@pytest.mark.anyio
async def test_what_goes_wrong_is_raised_as_it_is() -> None:
    async def here() -> None:
        raise EngineError("too long")

    with pytest.raises(EngineError, match="too long"):
        await do_everywhere(NoPeers(), "count", here)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_aborts_and_drains_are_everybodys() -> None:
    engine, peers = FakeEngine(), FakePeers(5)
    async with anyio.create_task_group() as tasks:
        await tasks.start(engine.run)
        client = create_app(engine, ServeArgs(admin_api_key="root"), peers=peers).test_client()
        answer = await client.post("/abort_requests", json={"request_ids": ["x"]}, headers=ADMIN)
        assert await answer.get_json() == {"status": "aborted", "num_aborted": 5}
        many = {"request_ids": ["x"] * 4097}
        assert (await client.post("/abort_requests", json=many, headers=ADMIN)).status_code == 400
        await client.post("/abort_requests", json={"request_ids": "all"}, headers=ADMIN)
        assert await peers.answers["abort_requests"](["x"]) == 0
        drained = await client.post("/drain?wait=1", headers=ADMIN)
        assert await drained.get_json() == {"status": "drained"}
        assert peers.calls == [("abort_requests", ["x"]), ("abort_requests", None), ("drain", 1.0)]
        assert peers.seconds == [0.0, 0.0, 1.0], "the others wait as long"
        assert await peers.answers["drain"](0.0) is True
        peers._answer = None
        drained = await client.post("/drain?wait=1", headers=ADMIN)
        assert await drained.get_json() == {"status": "draining"}, "one does not answer"
        answer = await client.post("/abort_requests", json={"request_ids": ["x"]}, headers=ADMIN)
        assert await answer.get_json() == {"status": "aborted", "num_aborted": 0}
        engine.stop()
