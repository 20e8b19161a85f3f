"""An open load: requests go out when their time has come, over connections that are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bench.client import BenchError
from bench.offer import Answer, Offerer, arrivals
from tests.openai_server import canned_server

BODY: dict[str, Any] = {"messages": []}


def test_arrivals_are_as_many_as_asked_for_and_always_the_same() -> None:
    times = list(arrivals(100, 50, seed=1))
    assert 4700 < len(times) < 5300
    assert times == sorted(times) == list(arrivals(100, 50, seed=1))
    assert times[-1] < 50


def test_answers_are_read_to_their_end_over_few_connections() -> None:
    async def ask(url: str) -> list[Answer]:
        async with Offerer(url, "/chat/completions") as offerer:
            answers = await offerer.ask_in_turn(2, [offerer.encode(BODY)] * 10)
        assert offerer.num_connections <= 2
        return answers

    with canned_server() as server:
        answers = asyncio.run(ask(server.url))
    assert len(answers) == 10
    for answer in answers:
        assert answer.is_accepted
        assert answer.is_whole
        assert answer.started < answer.events[0] <= answer.ended
        assert 0 < answer.time_to_first_token <= answer.latency


def test_requests_go_out_at_their_times_and_refusals_are_answers() -> None:
    async def ask(url: str) -> list[Answer]:
        async with Offerer(url, "/chat/completions") as offerer:
            return await offerer.ask_at([0.0, 0.01, 0.05], [offerer.encode(BODY)] * 3)

    with canned_server(error=(429, {"error": {"message": "full"}})) as server:
        answers = asyncio.run(ask(server.url))
    assert [answer.status for answer in answers] == [429] * 3
    assert answers[2].started - answers[0].started >= 0.04
    assert not any(answer.is_accepted or answer.retry_after for answer in answers)


def test_a_server_that_is_not_there_is_an_error() -> None:
    with canned_server() as server:
        url = server.url
    with pytest.raises(BenchError, match="no connection"):
        asyncio.run(Offerer(url, "/completions").ask_in_turn(1, [b""]))


def test_gaps_lie_between_events() -> None:
    assert Answer(started=0.0, events=[1.0, 1.5, 3.0]).gaps == [0.5, 1.5]
