from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.triolet.cluster.ranks import FakeLink

from triolet.cluster.messages import Call, Message, RemoteError, Result, encode_message
from triolet.cluster.rank_calls import CallLostError, RankCalls, gather_answers, send_answer
from triolet.errors import ConflictError, EngineError, InvalidRequestError

pytestmark = pytest.mark.anyio


async def answered(result: Any) -> Any:
    """What a call comes to whose answer is that."""
    link = FakeLink()
    calls = RankCalls(link, "rank 1")
    got: list[Any] = []

    async def ask() -> None:
        try:
            got.append(await calls.call("sleep", 1, "keep"))
        except Exception as exc:
            got.append(exc)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        call = await link.next(Call)
        assert call == Call(0, "sleep", (1, "keep"))
        if result is None:
            calls.lose()
        else:
            calls.settle(Result(99, value="of another"))
            calls.settle(result)
            calls.settle(result)
    return got[0]


async def test_a_call_comes_to_its_answer() -> None:
    assert await answered(Result(0, value=True)) is True


async def test_errors_are_typed_and_name_the_rank() -> None:
    error = await answered(Result(0, error=RemoteError.of(InvalidRequestError("level: no", param="level"))))
    assert isinstance(error, InvalidRequestError)
    assert (error.message, error.param) == ("rank 1: level: no", "level")
    error = await answered(Result(0, error=RemoteError.of(ConflictError("not now"))))
    assert isinstance(error, ConflictError)
    error = await answered(Result(0, error=RemoteError.of(RuntimeError("broken"))))
    assert isinstance(error, EngineError)
    assert str(error) == "rank 1: broken"


async def test_a_call_is_over_when_the_link_is_lost() -> None:
    assert isinstance(await answered(None), CallLostError)
    calls = RankCalls(FakeLink(), "rank 1")
    calls.lose()
    with pytest.raises(CallLostError, match="rank 1"):
        await calls.call("resume")


async def test_the_answer_to_a_call_that_was_given_up_is_dropped() -> None:
    link = FakeLink()
    calls = RankCalls(link, "rank 1")
    with anyio.move_on_after(0):
        await calls.call("statistics")
    calls.settle(Result(0, value=1))
    with anyio.move_on_after(0):
        await calls.call("statistics")
    assert link.posted == [Call(0, "statistics"), Call(1, "statistics")]


async def test_errors_that_say_themselves_whose_they_are_are_passed_on_as_they_are() -> None:
    calls = RankCalls(FakeLink(), "API server 1", names_errors=False)
    answer = calls.call("follow")
    calls.settle(Result(0, error=RemoteError.of(ConflictError("rank 1: not now"))))
    with pytest.raises(ConflictError, match=r"^rank 1: not now$"):
        await answer


async def give(value: Any) -> Any:
    if isinstance(value, Exception):
        raise value
    return value


async def test_of_many_answers_those_count_that_were_not_lost() -> None:
    assert await gather_answers([give(1), give(CallLostError("gone")), give(3)]) == [1, 3]
    assert await gather_answers([]) == []
    with pytest.raises(ConflictError, match="first"):
        await gather_answers([give(0), give(ConflictError("first")), give(ConflictError("second"))])


class EncodingLink(FakeLink):
    """Refuses what cannot be sent, as a link does."""

    def post(self, message: Message) -> None:
        encode_message(message)
        super().post(message)


async def test_what_a_call_comes_to_is_sent_back() -> None:
    link = EncodingLink()
    await send_answer(link, 3, give("done"))
    await send_answer(link, 4, give(ConflictError("no")))
    await send_answer(link, 5, give(object()))
    done, failed, unsendable = link.posted
    assert [done, failed] == [Result(3, "done"), Result(4, error=RemoteError.of(ConflictError("no")))]
    assert isinstance(unsendable, Result)
    assert unsendable.call_id == 5
    assert unsendable.error is not None
    assert unsendable.error.text.startswith("the answer cannot be sent: ")
