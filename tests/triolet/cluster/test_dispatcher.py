"""Which request is at which rank: given out, replayed, moved, held, ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.triolet.cluster.dispatched import Cluster
from tests.triolet.cluster.ranks import FakeLink, ask, said

from triolet.cluster.losses import SECONDS_FOR_CAUSE
from triolet.cluster.messages import Abort
from triolet.cluster.placement import REQUEST_COST
from triolet.errors import InvalidRequestError, OverloadedError
from triolet.request import FinishReason, LogitsAdjustments
from triolet.statistics import RankState

STOP, TIMEOUT = FinishReason.STOP, FinishReason.TIMEOUT


def test_requests_are_shared_out_and_their_outputs_handed_on() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.add(ask(number))
    assert (cluster.added(0), cluster.added(1)) == ([0, 2], [1, 3])
    cluster.say(0, said(0, 7), said(2, 8, reason=STOP))
    cluster.say(1, said(1, 9))
    assert cluster.outputs() == [said(0, 7), said(2, 8, reason=STOP), said(1, 9)]
    assert cluster.outputs() == []
    assert cluster.dispatcher.num_requests == 3


def test_requests_that_belong_together_go_to_one_rank() -> None:
    cluster = Cluster()
    cluster.add(*[ask(number) for number in range(3)])
    assert cluster.added(0) == [0, 1, 2]


def test_an_aborted_request_is_taken_from_its_rank_and_says_nothing_more() -> None:
    cluster = Cluster()
    cluster.add(ask(1))
    cluster.dispatcher.abort(1, 0.0)
    cluster.dispatcher.abort(1, 0.0)
    cluster.dispatcher.abort(99, 0.0)
    assert cluster.links[0].take(Abort) == [Abort((1,))]
    cluster.say(0, said(1, 7))
    assert cluster.outputs() == []


def test_what_has_said_nothing_is_replayed_and_the_rest_ends_with_the_cause() -> None:
    cluster = Cluster()
    for number in range(4):
        cluster.add(ask(number))
    cluster.added(1)
    cluster.say(0, said(0, 7))
    cluster.lose(0)
    assert cluster.outputs() == [said(0, 7)]
    (wire_id,) = cluster.added(1)
    cluster.say(1, said(wire_id, 5), said(wire_id, 6, reason=STOP))
    assert cluster.outputs() == [said(2, 5), said(2, 6, reason=STOP)]
    cluster.tell(0, RankState.DOWN, generation=0, cause="killed by SIGKILL")
    (end,) = cluster.outputs()
    assert (end.request_id, end.finish_reason, end.is_engine_dead) == (0, FinishReason.ERROR, True)
    assert end.error == "rank 0: killed by SIGKILL"
    assert cluster.dispatcher.num_requests == 2


def test_a_cause_that_was_known_before_the_link_was_lost_is_told_at_once() -> None:
    cluster = Cluster()
    cluster.add(ask(0))
    cluster.say(0, said(0, 7))
    cluster.tell(0, RankState.DEAD, cause="out of memory")
    cluster.lose(0)
    assert [output.error for output in cluster.outputs()] == [None, "rank 0: out of memory"]


def test_without_a_cause_what_was_seen_is_told_after_a_second() -> None:
    cluster = Cluster()
    cluster.add(ask(0))
    cluster.add(ask(2, data_parallel_rank=0))
    cluster.say(0, said(0, 7), said(2, 7))
    cluster.now = 5.0
    cluster.lose(0, "silent for 5 s")
    assert cluster.dispatcher.next_due() == 5.0 + SECONDS_FOR_CAUSE
    cluster.dispatcher.abort(2, 5.5)
    cluster.dispatcher.expire(5.0 + SECONDS_FOR_CAUSE)
    assert [output.error for output in cluster.outputs()] == [None, None, "rank 0: silent for 5 s"]
    assert (cluster.dispatcher.num_requests, cluster.dispatcher.next_due()) == (0, None)


def test_while_no_rank_serves_requests_are_held_and_new_ones_refused() -> None:
    cluster = Cluster()
    cluster.add(ask(0))
    cluster.lose(0)
    cluster.lose(1)
    cluster.tell(0, RankState.STARTING, num_restarts=2)
    cluster.tell(1, RankState.DOWN, generation=0, num_restarts=4)
    with pytest.raises(OverloadedError, match="rank 0 is starting, 1 is down") as caught:
        cluster.add(ask(1))
    assert (caught.value.status, caught.value.retry_after) == (503, 2)
    cluster.attach(1)
    (wire_id,) = cluster.added(1)
    assert wire_id < 0
    cluster.say(1, said(wire_id, 7, reason=STOP))
    assert cluster.outputs() == [said(0, 7, reason=STOP)]


def test_a_request_that_several_ranks_were_lost_with_ends_with_the_last() -> None:
    """It may be what they die of; those that leave when they are told to do not count."""
    cluster = Cluster(ranks=range(1))
    cluster.add(ask(0))
    for state in (RankState.DRAINING,) * 4 + (RankState.DOWN,) * 3:
        assert (cluster.outputs(), len(cluster.added(0))) == ([], 1)
        cluster.tell(0, state, cause="killed by SIGSEGV")
        cluster.lose(0)
        cluster.attach(0)
    (end,) = cluster.outputs()
    assert (end.request_id, end.error, end.is_engine_dead) == (0, "rank 0: killed by SIGSEGV", True)
    assert (cluster.added(0), cluster.dispatcher.num_requests) == ([], 0)


def test_time_that_was_used_counts_when_a_request_is_replayed() -> None:
    cluster = Cluster()
    cluster.add(ask(0, timeout=10.0, first_token_timeout=6.0))
    cluster.now = 4.0
    cluster.lose(0)
    (request,) = cluster.links[1].added()
    assert request.options == replace(ask(0).options, timeout=6.0, first_token_timeout=2.0)
    cluster.now = 6.5
    cluster.lose(1)
    assert [(output.request_id, output.finish_reason) for output in cluster.outputs()] == [(0, TIMEOUT)]


def test_what_is_held_ends_when_its_time_is_up_or_it_is_aborted() -> None:
    cluster = Cluster(ranks=range(1))
    for request in (ask(0, timeout=10.0), ask(1, queue_timeout=3.0), ask(2), ask(3)):
        cluster.add(request)
    cluster.lose(0)
    assert cluster.dispatcher.next_due() == 3.0
    cluster.dispatcher.expire(3.0)
    assert [(output.request_id, output.finish_reason) for output in cluster.outputs()] == [(1, TIMEOUT)]
    cluster.dispatcher.abort(2, 4.0)
    cluster.dispatcher.end_all(5.0)
    ends = [(output.request_id, output.finish_reason) for output in cluster.outputs()]
    assert ends == [(0, FinishReason.ABORT), (3, FinishReason.ABORT)]
    assert (cluster.dispatcher.num_requests, cluster.dispatcher.next_due()) == (0, None)


def test_what_is_held_fails_when_no_rank_will_ever_serve_it() -> None:
    cluster = Cluster()
    cluster.add(ask(0))
    cluster.add(ask(1, data_parallel_rank=0))
    cluster.lose(0)
    cluster.lose(1)
    cluster.tell(0, RankState.DEAD, cause="restarted too often")
    (end,) = cluster.outputs()
    assert (end.request_id, end.error) == (1, "rank 0: restarted too often")
    cluster.tell(1, RankState.DEAD, cause="out of memory")
    (end,) = cluster.outputs()
    assert (end.error, end.is_engine_dead) == ("rank 0: restarted too often; rank 1: out of memory", True)


class TestRankOverride:
    def test_it_goes_there_and_stays_there(self) -> None:
        cluster = Cluster()
        for number in range(8):
            cluster.add(ask(number, data_parallel_rank=1))
        assert cluster.added(1) == list(range(8))
        cluster.say(1, said(0, 7))
        cluster.tell(1, num_waiting=4)
        cluster.tell(1, num_waiting=4)
        assert cluster.added(0) == []
        cluster.lose(1)
        assert cluster.added(0) == []
        cluster.attach(1)
        assert len(cluster.added(1)) == 7

    def test_a_rank_that_does_not_serve_or_does_not_exist_is_an_error(self) -> None:
        cluster = Cluster(ranks=range(2, 4))
        with pytest.raises(InvalidRequestError, match="must be one of 2, 3, got 1") as caught:
            cluster.add(ask(0, data_parallel_rank=1))
        assert caught.value.param == "data_parallel_rank"
        cluster.lose(3)
        with pytest.raises(OverloadedError, match="rank 3 is down"):
            cluster.add(ask(0, data_parallel_rank=3))


class TestMoving:
    def test_what_is_more_than_a_rank_can_run_moves_once_another_has_room(self) -> None:
        cluster = Cluster(max_num_seqs=2)
        for number in range(6):
            cluster.add(ask(number))
        assert (cluster.added(0), cluster.added(1)) == ([0, 2, 4], [1, 3, 5])
        cluster.say(1, said(1, reason=STOP), said(3, 7))
        assert cluster.added(0) == [], "rank 1 runs the one that waited there itself"
        cluster.say(1, said(3, reason=STOP))
        assert cluster.links[0].take(Abort) == [Abort((4,), is_moved=True)]
        (wire_id,) = cluster.added(1)
        cluster.say(0, said(4, 1, reason=STOP))
        cluster.say(1, said(wire_id, 2))
        assert cluster.outputs()[-1] == said(4, 2), "what the old rank says of it is dropped"

    def test_what_has_waited_from_one_report_to_the_next_moves_too(self) -> None:
        cluster = Cluster(max_num_seqs=64)
        for number in range(4):
            cluster.add(ask(number, data_parallel_rank=0))
        cluster.add(ask(5, prompt=200, data_parallel_rank=0))
        cluster.now = 1.0
        cluster.tell(0, num_waiting=1, num_running=4)
        assert cluster.added(1) == [], "it may just have come"
        cluster.now = 2.0
        cluster.dispatcher.ranks[1].statistics = cluster.dispatcher.ranks[1].statistics
        cluster.add(ask(6, data_parallel_rank=1))
        cluster.tell(0, num_waiting=1, num_running=4)
        assert cluster.added(1) == [6], "one that asked for its rank stays"

    def test_one_that_waits_behind_a_long_prompt_moves(self) -> None:
        cluster = Cluster(max_num_seqs=64)
        cluster.lose(1)
        cluster.add(ask(1, prompt=400))
        cluster.add(ask(2))
        cluster.now = 1.0
        cluster.attach(1)
        cluster.tell(0, num_waiting=1, num_running=1)
        assert cluster.added(1) == []
        cluster.now = 2.0
        cluster.tell(0, num_waiting=1, num_running=1)
        assert len(cluster.added(1)) == 1
        assert cluster.links[0].take(Abort) == [Abort((2,), is_moved=True)]
        cluster.now = 3.0
        cluster.tell(0, num_waiting=0, num_running=1)
        assert cluster.added(1) == []

    def test_one_that_has_moved_stays_longer_each_time(self) -> None:
        """Other front ends move theirs to the same place at the same time."""
        cluster = Cluster(max_num_seqs=1, has_peers=True)
        cluster.add(ask(0))
        assert cluster.added(0) == [0]
        places = []
        for tenth in range(1, 41):
            cluster.now = tenth / 10
            (here,) = [number for number, rank in cluster.dispatcher.ranks.items() if rank.requests]
            cluster.tell(1 - here, num_running=0, num_waiting=0)
            cluster.tell(here, num_running=1, num_waiting=2)
            if cluster.added(1 - here):
                places.append((tenth, 1 - here))
        assert places == [(1, 1), (6, 0), (16, 1), (36, 0)]

    def test_none_moves_where_it_would_be_no_better_off(self) -> None:
        cluster = Cluster(max_num_seqs=64)
        cluster.lose(1)
        cluster.add(ask(1))
        cluster.add(ask(2))
        cluster.attach(1)
        for number in range(3, 6):
            cluster.add(ask(number, data_parallel_rank=1))
        cluster.added(1)
        for now in (1.0, 2.0, 3.0):
            cluster.now = now
            cluster.tell(0, num_waiting=1, num_running=1)
        assert cluster.added(1) == []

    def test_a_rank_that_drains_gets_nothing_new_and_ends_what_it_has(self) -> None:
        cluster = Cluster(max_num_seqs=1)
        cluster.add(ask(0))
        cluster.add(ask(1))
        cluster.add(ask(2, data_parallel_rank=0))
        cluster.tell(0, RankState.DRAINING)
        cluster.added(1)
        cluster.add(ask(3))
        cluster.add(ask(4))
        assert cluster.added(1) == [3, 4]
        with pytest.raises(OverloadedError, match="rank 0 is draining"):
            cluster.add(ask(5, data_parallel_rank=0))
        cluster.say(0, said(0, 7, reason=STOP))
        assert cluster.outputs() == [said(0, 7, reason=STOP)]


class TestLimits:
    def test_so_many_requests_may_wait_for_each_rank(self) -> None:
        cluster = Cluster(max_num_seqs=1, max_num_queued_requests=2)
        for number in range(6):
            cluster.add(ask(number))
        with pytest.raises(OverloadedError, match="4 requests are waiting already") as caught:
            cluster.add(ask(6))
        with pytest.raises(OverloadedError, match="4 requests are waiting already"):
            cluster.dispatcher.check_room(cluster.now)
        assert caught.value.status == 429
        cluster.say(0, said(0, 7, reason=STOP))
        cluster.dispatcher.check_room(cluster.now)
        cluster.add(ask(6))
        assert cluster.dispatcher.num_requests == 6

    def test_requests_that_belong_together_are_taken_all_or_none(self) -> None:
        cluster = Cluster(max_num_seqs=1, max_num_queued_requests=1)
        cluster.add(ask(0))
        cluster.add(ask(1))
        with pytest.raises(OverloadedError):
            cluster.add(ask(2), ask(3), ask(4))
        cluster.add(ask(2), ask(3))

    def test_so_many_tokens_may_wait_for_each_rank_unless_nothing_else_does(self) -> None:
        cluster = Cluster(max_num_seqs=1, max_num_queued_tokens=10)
        cluster.add(ask(0, prompt=100))
        cluster.add(ask(1, prompt=100))
        cluster.add(ask(2, prompt=100))
        with pytest.raises(OverloadedError, match="200 tokens; with the 1 of this one"):
            cluster.add(ask(3, prompt=1))

    def test_what_others_have_waiting_counts(self) -> None:
        cluster = Cluster(ranks=range(1), has_peers=True, max_num_seqs=1, max_num_queued_requests=3)
        cluster.tell(0, num_running=1, num_waiting=2, num_waiting_tokens=20)
        cluster.add(ask(0))
        with pytest.raises(OverloadedError, match="3 requests are waiting"):
            cluster.add(ask(1))

    def test_the_time_to_wait_is_computed_from_how_fast_requests_end(self) -> None:
        cluster = Cluster(ranks=range(1), max_num_seqs=1, max_num_queued_requests=2)
        for number in range(5):
            cluster.add(ask(number))
            cluster.now += 10.0
            cluster.say(0, said(number, 7, reason=STOP))
        for number in range(5, 8):
            cluster.add(ask(number))
        with pytest.raises(OverloadedError) as caught:
            cluster.add(ask(8))
        assert caught.value.retry_after == 16


def test_load_of_other_front_ends_counts_beside_our_own() -> None:
    alone, among = Cluster(), Cluster(has_peers=True)
    for cluster in (alone, among):
        cluster.tell(0, num_running=3, num_waiting=0, num_waiting_tokens=0)
        cluster.add(ask(0))
    assert (alone.added(0), among.added(0)) == ([0], [])
    assert among.dispatcher.ranks[0].burden.num_tokens == 3 * REQUEST_COST


def test_functions_cannot_be_sent() -> None:
    cluster = Cluster()
    request = replace(ask(0), adjustments=LogitsAdjustments(processors=(lambda ids, logits: logits,)))
    with pytest.raises(InvalidRequestError, match="another process") as caught:
        cluster.add(request)
    assert caught.value.param == "logits_processors"
    assert cluster.dispatcher.num_requests == 0


def test_a_second_link_of_a_rank_takes_the_place_of_the_first() -> None:
    cluster = Cluster(ranks=range(1))
    old = cluster.links[0]
    cluster.add(ask(0))
    cluster.links[0] = FakeLink()
    cluster.attach(0)
    assert len(cluster.added(0)) == 1
    cluster.dispatcher.receive(cluster.dispatcher.ranks[0], old, [said(0, 7)], 0.0)
    cluster.dispatcher.detach(cluster.dispatcher.ranks[0], old, "late", 0.0)
    assert (cluster.outputs(), cluster.dispatcher.num_requests) == ([], 1)


def test_what_waits_longest_is_known_of_each_rank() -> None:
    cluster = Cluster()

    def ages(now: float) -> list[Any]:
        ranks = cluster.dispatcher.ranks.values()
        return [cluster.dispatcher.statistics_of(rank, now).oldest_waiting_age for rank in ranks]

    cluster.add(ask(0))
    cluster.now = 2.0
    cluster.lose(1)
    assert ages(3.0) == [3.0, None]
    cluster.lose(0)
    assert ages(4.0) == [4.0, 4.0]
