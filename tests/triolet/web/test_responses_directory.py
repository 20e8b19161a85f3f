"""Responses of several servers: each is found, read, cancelled and deleted from any of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import anyio
import pytest
from tests.triolet.web.fake_engine import FakeEngine

from triolet.cluster.launcher_link import NoAnswer
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.statistics import EngineState
from triolet.web.farewells import Farewells
from triolet.web.generation import Generation
from triolet.web.responses_directory import (
    ResponseDirectory,
    ResponseNotFoundError,
    ResponseOutOfReachError,
    Running,
)
from triolet.web.responses_log import EventPage
from triolet.web.settings import WebSettings

pytestmark = pytest.mark.anyio


class PairedPeers:
    """The end of one server of a pair."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[..., Awaitable[Any]]] = {}
        self.other = self
        self.failure: NoAnswer | None = None

    def answer(self, answers: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self.answers.update(answers)

    async def call_peers(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        if self.failure is not None:
            return [self.failure]
        return [await self.other.answers[method](*arguments)]


def paired_directories(
    failure: NoAnswer | None = None,
) -> tuple[ResponseDirectory, ResponseDirectory, FakeEngine]:
    here, there = PairedPeers(), PairedPeers()
    here.other, there.other = there, here
    here.failure = there.failure = failure
    engine = FakeEngine(hold_at=1)
    engine.state = EngineState.READY
    pair = [ResponseDirectory(engine, WebSettings(peers=peers)) for peers in (here, there)]
    return pair[0], pair[1], engine


def show(status: str = "in_progress") -> dict[str, Any]:
    return {"id": "r1", "status": status}


async def running(engine: FakeEngine, *, is_stored: bool = True) -> Running:
    params = SamplingParams(max_tokens=9, output_kind=RequestOutputKind.DELTA)
    generation = Generation([await engine.submit("hi", params, request_id="r1")])
    return Running("me", is_stored, generation, [], show)


async def found(directory: ResponseDirectory, owner: str = "me") -> Any:
    return json.loads((await directory.find("r1", owner, param="response_id")).response)


async def test_a_response_is_found_everywhere_while_it_is_written_and_after() -> None:
    here, there, engine = paired_directories()
    end = here.begin("r1", await running(engine))
    for directory in (here, there):
        assert (await found(directory))["status"] == "in_progress"
        with pytest.raises(ResponseNotFoundError):
            await found(directory, "you")
    assert here.keep({"id": "r1", "status": "completed"})
    end()
    for directory in (here, there):
        assert (await found(directory))["status"] == "completed"
        with pytest.raises(ResponseNotFoundError):
            await found(directory, "you")
    await there.delete("r1", "me")
    for directory in (here, there):
        with pytest.raises(ResponseNotFoundError, match="'r1'"):
            await directory.delete("r1", "me")


async def test_a_response_is_cancelled_from_everywhere_but_by_its_owner_alone() -> None:
    here, there, engine = paired_directories()
    entry = await running(engine, is_stored=False)
    end = here.begin("r1", entry)
    with pytest.raises(ResponseNotFoundError):
        await there.cancel("r1", "you")
    assert json.loads((await there.cancel("r1", "me")).response)["status"] == "cancelled"
    while not entry.generation.is_finished:
        await entry.generation.next()
    assert engine.num_open == 0
    here.keep({"id": "r1", "status": "cancelled"})
    end()
    with pytest.raises(ResponseNotFoundError):
        await found(here)


async def test_a_response_that_is_deleted_while_it_is_written_is_not_kept() -> None:
    here, there, engine = paired_directories()
    end = here.begin("r1", await running(engine))
    with pytest.raises(ResponseNotFoundError):
        await there.delete("r1", "you")
    await there.delete("r1", "me")
    for directory in (here, there):
        with pytest.raises(ResponseNotFoundError):
            await found(directory)
        with pytest.raises(ResponseNotFoundError):
            await directory.delete("r1", "me")
    assert not here.keep({"id": "r1", "status": "completed"})
    end()
    with pytest.raises(ResponseNotFoundError):
        await found(here)


async def test_a_response_that_ends_untold_is_forgotten() -> None:
    here, _, engine = paired_directories()
    end = here.begin("r1", await running(engine))
    end()
    with pytest.raises(ResponseNotFoundError):
        await found(here)


async def test_one_that_may_be_where_no_answer_comes_from_is_not_said_to_be_nowhere() -> None:
    here, there, engine = paired_directories(NoAnswer("its answer is too long"))
    end = here.begin("r1", await running(engine))
    assert (await found(here))["status"] == "in_progress"
    for ask in (
        partial(there.find, param="response_id"), there.delete, there.cancel,
    ):  # fmt: skip
        with pytest.raises(ResponseOutOfReachError, match=r"'r1' is not here.*: its answer is too long"):
            await ask("r1", "me")
    end()


async def test_events_are_read_from_everywhere_but_by_their_owner_alone() -> None:
    here, there, engine = paired_directories()
    log = here.logs.open("r1")
    end = here.begin("r1", await running(engine))
    here.logs.append("r1", b"data: 0\n\n")
    assert await there.events("r1", "you") is None
    near, far = await here.events("r1", "me"), await there.events("r1", "me")
    assert near is not None
    assert far is not None
    for read in (near, far):
        assert await read(0, 1.0) == EventPage([b"data: 0\n\n"], False, False)
        assert await read(1, 0.0) == EventPage([], False, False)
    async with anyio.create_task_group() as tasks:
        pages: list[EventPage] = []

        async def wait_for_more() -> None:
            pages.append(await far(1, 20.0))

        tasks.start_soon(wait_for_more)
        await anyio.wait_all_tasks_blocked()
        log.append(b"data: 1\n\n")
    assert pages == [EventPage([b"data: 1\n\n"], False, False)]
    log.end()
    assert await far(1, 20.0) == EventPage([b"data: 1\n\n"], True, False)
    await there.delete("r1", "me")
    for read in (near, far):
        assert await read(0, 20.0) == EventPage([], True, True)
    end()


async def test_events_that_nobody_has_are_not_read() -> None:
    here, there, engine = paired_directories()
    end = here.begin("r1", await running(engine))
    assert await here.events("r1", "me") is None
    assert await there.events("r1", "me") is None
    end()


@pytest.mark.parametrize("is_leaving", [False, True])
async def test_what_ends_while_the_server_leaves_is_owed_until_somebody_asks(is_leaving: bool) -> None:
    engine, farewells = FakeEngine(hold_at=1), Farewells()
    engine.state = EngineState.READY
    directory = ResponseDirectory(engine, WebSettings(farewells=farewells, is_leaving=lambda: is_leaving))
    entry = await running(engine)
    entry.is_background = True
    end = directory.begin("r1", entry)
    await found(directory)
    assert await is_owed(farewells)
    directory.keep({"id": "r1", "status": "failed"})
    end()
    assert await is_owed(farewells) == is_leaving
    await found(directory)
    assert not await is_owed(farewells)


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("ask", [ResponseDirectory.cancel, ResponseDirectory.delete])
async def test_who_cancels_or_deletes_is_told_at_once(ask: Any, has_ended: bool) -> None:
    engine, farewells = FakeEngine(hold_at=1), Farewells()
    engine.state = EngineState.READY
    directory = ResponseDirectory(engine, WebSettings(farewells=farewells, is_leaving=lambda: True))
    entry = await running(engine)
    entry.is_background = True
    end = directory.begin("r1", entry)
    if has_ended:
        directory.keep({"id": "r1", "status": "completed"})
    assert await is_owed(farewells)
    await ask(directory, "r1", "me")
    assert not await is_owed(farewells)
    if not has_ended:
        directory.keep({"id": "r1", "status": "cancelled"})
    end()
    assert not await is_owed(farewells)


async def is_owed(farewells: Farewells) -> bool:
    with anyio.move_on_after(0) as scope:
        await farewells.wait_told()
    return scope.cancelled_caught
