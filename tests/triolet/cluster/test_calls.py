"""Calls from other processes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.cluster.fake_rank import FakeRankClient

from triolet.cluster.calls import METHODS, answer
from triolet.cluster.codec import from_plain
from triolet.cluster.messages import Call, Result
from triolet.errors import ConflictError, InvalidRequestError
from triolet.statistics import RankStatistics

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("method", "arguments", "called", "value"),
    [
        ("pause", ("wait", False), ("pause", "wait", False), None),
        ("resume", (), ("resume",), None),
        ("sleep", (1, "abort"), ("sleep", 1, "abort"), None),
        ("wake_up", (("weights",),), ("wake_up", ("weights",)), None),
        ("wake_up", (), ("wake_up", None), None),
        ("reset_prefix_cache", (True,), ("reset_prefix_cache", True), True),
    ],
)
async def test_a_call_is_made_and_answered(method: str, arguments: Any, called: Any, value: Any) -> None:
    client = FakeRankClient()
    assert await answer(client, Call(3, method, arguments)) == Result(3, value)
    assert client.calls == [called]


async def test_statistics_are_answered_with_all_that_is_known() -> None:
    client = FakeRankClient(rank=4)
    result = await answer(client, Call(1, "statistics"))
    assert (from_plain(RankStatistics, result.value),) == client.rank_statistics()


async def test_what_goes_wrong_is_the_answer() -> None:
    class Refusing(FakeRankClient):
        async def resume(self) -> None:
            raise ConflictError("asleep")

    result = await answer(Refusing(), Call(1, "resume"))
    assert result.error is not None
    assert str(result.error.exception()) == "asleep"
    assert isinstance(result.error.exception(), ConflictError)


@pytest.mark.parametrize(("method", "arguments"), [("rm", ()), ("run", ()), ("resume", (1, 2, 3))])
async def test_what_is_no_call_is_answered_too(method: str, arguments: Any) -> None:
    client = FakeRankClient()
    result = await answer(client, Call(1, method, arguments))
    assert result.error is not None
    assert method in METHODS or isinstance(result.error.exception(), InvalidRequestError)
    assert client.calls == []
