"""Responses of several servers: each is found, cancelled and deleted from any of them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import pytest
from tests.triolet.web.fake_engine import FakeEngine

from triolet.cluster.launcher_link import NoAnswer
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.statistics import EngineState
from triolet.web.generation import Generation
from triolet.web.responses_directory import (
    ResponseDirectory,
    ResponseNotFoundError,
    ResponseOutOfReachError,
    Running,
)
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


async def running(engine: FakeEngine, *, is_stored: bool = True) -> Running:
    params = SamplingParams(max_tokens=9, output_kind=RequestOutputKind.DELTA)
    generation = Generation([await engine.submit("hi", params, request_id="r1")])
    return Running("me", is_stored, generation, [], lambda status: {"id": "r1", "status": status})


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
