"""The router on both event loops: requests through ranks that come and go, control of all of them."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from tests.triolet.cluster.ranks import ask, report, router_args, said
from tests.triolet.cluster.routers import Served, asked, served

from triolet.cluster.client import EngineClient
from triolet.cluster.codec import to_plain
from triolet.cluster.control_state import ControlState, Order
from triolet.cluster.messages import Abort, Call, Drain, Outputs, RemoteError, Result
from triolet.cluster.router import Router
from triolet.errors import ConflictError, EngineDeadError, ModelLoadError, OverloadedError
from triolet.request import FinishReason
from triolet.statistics import CoreStatistics, RankState, RankStatistics

pytestmark = pytest.mark.anyio

STOP = FinishReason.STOP


def test_a_router_is_an_engine_client() -> None:
    client: type[EngineClient] = Router
    assert client is Router


async def test_it_has_started_when_its_first_rank_serves() -> None:
    router = Router(router_args(), range(2))
    async with anyio.create_task_group() as tasks:
        started = anyio.Event()

        async def run() -> None:
            await tasks.start(router.run)
            started.set()

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        assert not started.is_set()
        with pytest.raises(OverloadedError, match="rank 0 is starting, 1 is starting"):
            router.add(ask(1))
        await Served(router, tasks).join(1)
        assert started.is_set()
        assert (router.max_model_len, router.vocab_size, router.num_ranks) == (512, 258, 2)
        assert router.rank_states == (RankState.STARTING, RankState.READY)
        tasks.cancel_scope.cancel()


async def test_requests_go_to_ranks_and_outputs_come_back() -> None:
    async with served() as cluster:
        cluster.router.add(ask(1))
        cluster.router.add(ask(2))
        assert cluster.links[0].added() == [ask(1)]
        cluster.links[1].say(Outputs((said(2, 5),)))
        assert await cluster.router.get_outputs() == [said(2, 5)]
        cluster.router.abort(2)
        assert cluster.links[1].take(Abort) == [Abort((2,))]
        assert cluster.router.num_requests == 1


async def test_the_cause_of_a_loss_is_waited_for() -> None:
    async with served() as cluster:
        cluster.router.add(ask(1))
        cluster.links[0].say(Outputs((said(1, 5),)))
        await cluster.router.get_outputs()
        await cluster.lose(0)
        with anyio.move_on_after(0.01):
            await cluster.router.get_outputs()
            pytest.fail("the cause is not known yet")
        down = report(0, RankState.DOWN, cause="killed by SIGKILL", num_restarts=1)
        cluster.router.update([down, report(9)])
        (end,) = await cluster.router.get_outputs()
        assert end.error == "rank 0: killed by SIGKILL"
        assert cluster.router.rank_states == (RankState.DOWN, RankState.READY)
        (lost, _) = cluster.router.rank_statistics()
        assert (lost.state, lost.cause, lost.num_restarts) == (RankState.DOWN, "killed by SIGKILL", 1)


async def test_what_no_rank_can_serve_ends_when_its_time_is_up() -> None:
    async with served(1) as cluster:
        cluster.router.add(ask(1, timeout=0.01))
        cluster.router.add(ask(2))
        await cluster.lose(0)
        (end,) = await cluster.router.get_outputs()
        assert (end.request_id, end.finish_reason) == (1, FinishReason.TIMEOUT)
        link = await cluster.join(0, generation=1)
        assert len(link.added()) == 1


async def test_a_rank_that_is_not_like_the_others_is_not_taken_in() -> None:
    async with served() as cluster:
        for fields in ({"vocab_size": 5}, {"max_model_len": 5}):
            link = await cluster.join(0, generation=1, **fields)
            assert link.closed_reason is not None
            assert "not taken in" in link.closed_reason
        assert cluster.router.rank_states == (RankState.READY, RankState.READY)
        link = await cluster.join(7)
        assert link.closed_reason is not None


async def test_the_context_is_the_shortest_of_those_that_it_started_with() -> None:
    router = Router(router_args(), range(3), first_ranks=(0, 1))
    async with anyio.create_task_group() as tasks:
        cluster = Served(router, tasks)
        tasks.start_soon(router.run)
        await cluster.join(0, max_model_len=500)
        assert (await cluster.join(1, max_model_len=400)).closed_reason is None
        assert (await cluster.join(2, max_model_len=300)).closed_reason is not None, "it had started"
        assert router.max_model_len == 400
        tasks.cancel_scope.cancel()


async def test_a_rank_that_will_not_come_back_is_not_waited_for() -> None:
    async with served() as cluster:
        await cluster.lose(0)
        cluster.router.update([report(0, RankState.DOWN)])
        cluster.tasks.start_soon(cluster.join, 0, 1)
        await cluster.router.wait_back(0)
        await cluster.lose(0)
        cluster.router.update([report(0, RankState.LEFT, generation=1)])
        with pytest.raises(EngineDeadError, match="engine 0 did not come back: it is left"):
            await cluster.router.wait_back(0)


async def test_ranks_keep_the_time_that_requests_have_by_themselves() -> None:
    async with served() as cluster:
        cluster.router.end_within(30.0)
        assert [cluster.links[rank].take(Drain) for rank in (0, 1)] == [[Drain(30.0)]] * 2
        await cluster.lose(0)
        (told,) = (await cluster.join(0, generation=1)).take(Drain)
        assert 0.0 < told.seconds < 30.0, "what is left of it"


async def test_an_older_process_does_not_take_the_place_of_a_newer_one() -> None:
    async with served() as cluster:
        new = await cluster.join(0, generation=2)
        old = await cluster.join(0, generation=1)
        assert old.closed_reason == "not taken in: a newer process of this rank is here"
        assert new.closed_reason is None


async def test_a_rank_that_talks_nonsense_is_lost() -> None:
    async with served() as cluster:
        cluster.links[0].say(Abort((1,)))
        await anyio.wait_all_tasks_blocked()
        assert cluster.links[0].closed_reason == "Abort is nothing that a rank sends here"
        assert cluster.router.rank_states == (RankState.DOWN, RankState.READY)


async def test_once_stopped_nothing_more_comes() -> None:
    async with served() as cluster:
        cluster.router.add(ask(1))
        cluster.router.add(ask(2))
        cluster.links[0].say(Outputs((said(1, 5),)))
        await anyio.wait_all_tasks_blocked()
        await cluster.router.stop()
        assert await cluster.router.get_outputs() == [said(1, 5)]
        assert await cluster.router.get_outputs() == []
        assert (cluster.links[0].take(Abort), cluster.links[1].take(Abort)) == ([Abort((1,))], [Abort((2,))])
        cluster.router.abort(1)


class TestControl:
    async def test_every_rank_is_asked_and_waited_for(self) -> None:
        async with served() as cluster:
            router, answer = cluster.router, cluster.answer
            await cluster.during(
                router.pause("keep", clear_cache=False), answer(0, "pause"), answer(1, "pause")
            )
            assert router.is_paused
            await cluster.during(router.resume(), answer(1, "resume"), answer(0, "resume"))
            assert not router.is_paused
            await cluster.during(router.sleep(1, "abort"), answer(0, "sleep"), answer(1, "sleep"))
            assert (router.is_paused, router.is_sleeping) == (True, True)
            with pytest.raises(ConflictError, match="wake_up"):
                await router.resume()
            await cluster.during(router.wake_up(["weights"]), answer(0, "wake_up"), answer(1, "wake_up"))
            assert router.is_sleeping
            await cluster.during(router.wake_up(), answer(0, "wake_up"), answer(1, "wake_up"))
            assert (router.is_paused, router.is_sleeping) == (False, False)

    @pytest.mark.parametrize(("answers", "expected"), [((True, True), True), ((True, False), False)])
    async def test_the_prefix_caches_are_empty_if_all_of_them_are(
        self, answers: tuple[bool, bool], expected: bool
    ) -> None:
        async with served() as cluster:
            asked = [cluster.answer(rank, "reset_prefix_cache", answers[rank]) for rank in (0, 1)]
            call = cluster.router.reset_prefix_cache(reset_running_requests=True)
            assert await cluster.during(call, *asked) is expected

    async def test_an_error_of_one_rank_names_it_and_all_sleep_on(self) -> None:
        async with served() as cluster:
            answers = [cluster.answer(0, "sleep"), cluster.answer(1, "sleep")]
            await cluster.during(cluster.router.sleep(1, "abort"), *answers)
            error = await cluster.during(
                cluster.router.wake_up(),
                cluster.answer(1, "wake_up", error=ModelLoadError("the file is gone")),
                cluster.answer(0, "wake_up"),
                cluster.answer(0, "follow"),
                cluster.answer(1, "follow"),
            )
            assert isinstance(error, ModelLoadError)
            assert error.message == "rank 1: the file is gone"
            assert cluster.router.is_sleeping

    async def test_all_ranks_hear_of_all_in_the_same_order_whatever_takes_long(self) -> None:
        async with served() as cluster:
            router = cluster.router
            asked_for = (router.pause("wait"), router.sleep(1, "keep"), router.wake_up())
            for call in asked_for:
                cluster.tasks.start_soon(cluster.during, call)
                await anyio.wait_all_tasks_blocked()
            for rank in (0, 1):
                told = [asked(call) for call in cluster.links[rank].take(Call)]
                assert [order.method for order in told] == ["pause", "sleep", "wake_up"]
                assert [order.state.version for order in told] == [1, 2, 3]
            assert not router.is_sleeping

    async def test_what_is_asked_for_is_done_whoever_waits(self) -> None:
        async with served() as cluster:
            with anyio.move_on_after(0):
                await cluster.router.pause("keep")
            await cluster.answer(0, "pause")
            assert cluster.router.is_paused

    async def test_a_rank_that_is_lost_meanwhile_is_not_waited_for(self) -> None:
        async with served() as cluster:
            pausing = cluster.router.pause("wait")
            assert await cluster.during(pausing, cluster.answer(0, "pause"), cluster.lose(1)) is None

    async def test_a_rank_that_joins_is_paused_before_it_is_given_requests(self) -> None:
        async with served() as cluster:
            cluster.router.add(ask(1))
            await cluster.lose(0)
            await cluster.lose(1)
            await cluster.router.pause("keep")
            link = await cluster.join(1, generation=1)
            assert link.added() == []
            order = asked(await cluster.answer(1, "pause"))
            assert order.state == ControlState(1, is_paused=True)
            await anyio.wait_all_tasks_blocked()
            assert len(link.added()) == 1

    async def test_one_that_joins_while_that_changes_is_like_the_others_in_the_end(self) -> None:
        async with served() as cluster:
            await cluster.lose(0)
            await cluster.during(cluster.router.sleep(1, "abort"), cluster.answer(1, "sleep"))
            await cluster.join(0, generation=1)
            call = await cluster.links[0].next(Call)
            assert asked(call).method == "sleep"
            await cluster.during(cluster.router.wake_up(["weights"]), cluster.answer(1, "wake_up"))
            cluster.links[0].say(Result(call.call_id, error=RemoteError.of(ConflictError("overtaken"))))
            await cluster.answer(0, "wake_up")
            await anyio.wait_all_tasks_blocked()
            assert cluster.router.rank_states == (RankState.READY, RankState.READY)

    async def test_one_that_joins_is_asked_nothing_where_nobody_ever_asked_for_anything(self) -> None:
        async with served() as cluster:
            assert cluster.links[0].posted == []

    async def test_one_that_cannot_be_like_the_others_is_sent_away(self) -> None:
        async with served() as cluster:
            await cluster.lose(0)
            await cluster.during(cluster.router.sleep(1, "abort"), cluster.answer(1, "sleep"))
            await cluster.join(0, generation=1)
            await cluster.answer(0, "sleep", error=RuntimeError("no"))
            await anyio.wait_all_tasks_blocked()
            assert "cannot be paused or put to sleep" in str(cluster.links[0].closed_reason)

    async def test_a_pause_that_aborts_ends_all_requests_wherever_they_are(self) -> None:
        async with served(1) as cluster:
            cluster.router.add(ask(1))
            cluster.router.add(ask(2))
            cluster.links[0].say(Outputs((said(1, 5),)))
            await cluster.router.get_outputs()
            await cluster.during(cluster.router.pause("abort"), cluster.answer(0, "pause"))
            ends = await cluster.router.get_outputs()
            assert [(end.request_id, end.finish_reason) for end in ends] == [
                (1, FinishReason.ABORT),
                (2, FinishReason.ABORT),
            ]
            assert cluster.links[0].take(Abort) == [Abort((1,)), Abort((2,))]
            cluster.router.add(ask(3))
            await cluster.lose(0)
            await cluster.router.pause("abort")
            (end,) = await cluster.router.get_outputs()
            assert (end.request_id, end.finish_reason) == (3, FinishReason.ABORT)

    async def test_where_others_decide_they_are_asked_and_followed(self) -> None:
        asked_for: list[Any] = []

        async def decide(*what: Any) -> bool:
            asked_for.append(what)
            return False

        router = Router(router_args(), range(1), num_front_ends=2, ask=decide)
        await router.pause("wait", clear_cache=False)
        await router.wake_up(("weights",))
        assert await router.reset_prefix_cache() is False
        assert asked_for == [
            ("pause", "wait", False),
            ("wake_up", ("weights",)),
            ("reset_prefix_cache", False),
        ]
        assert not router.is_paused
        assert await router.follow(Order(ControlState(1, is_paused=True), "pause", ("keep", True))) == []
        assert router.is_paused


async def test_a_link_whose_place_another_took_is_closed() -> None:
    async with served(1) as cluster:
        first = cluster.links[0]
        await cluster.join(0, generation=1)
        assert first.closed_reason == "another connection took its place"
        assert cluster.router.rank_states == (RankState.READY,)


class TestStatistics:
    async def test_every_rank_is_asked(self) -> None:
        async with served() as cluster:
            core = CoreStatistics(num_generated_tokens=7)
            told = [to_plain(RankStatistics(rank=0, num_steps=number, core=core)) for number in (1, 2)]
            answers = [cluster.answer(rank, "statistics", told[rank]) for rank in (0, 1)]
            await cluster.during(cluster.router.refresh_statistics(), *answers)
            known = cluster.router.rank_statistics()
            assert [(one.rank, one.num_steps, one.core) for one in known] == [(0, 1, core), (1, 2, core)]

    async def test_a_rank_that_does_not_answer_or_talks_nonsense_keeps_what_it_told_last(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("triolet.cluster.router.STATISTICS_TIMEOUT", 0.05)
        async with served() as cluster:
            answers = [cluster.answer(0, "statistics", ["nonsense"])]
            await cluster.during(cluster.router.refresh_statistics(), *answers)
            assert [one.num_steps for one in cluster.router.rank_statistics()] == [0, 0]

    async def test_the_time_keeper_sleeps_while_there_is_nothing_to_do(self) -> None:
        async with served() as cluster:
            cluster.router.add(ask(1))
            cluster.links[0].say(Outputs((said(1, 5, reason=STOP),)))
            await cluster.router.get_outputs()
            assert cluster.router._sleeps_until == math.inf
