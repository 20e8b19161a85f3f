"""What a front end knows of a rank: its state, its burden, its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.triolet.cluster.ranks import FakeLink, ask, ready, report

from triolet.cluster.placement import REQUEST_COST
from triolet.cluster.rank_link import RankLink, RoutedRequest
from triolet.statistics import RankState, RankStatistics, SchedulerStatistics

STARTING, READY, DRAINING, DOWN, LEFT, DEAD = RankState


def rank_link(*, has_peers: bool = False) -> RankLink:
    return RankLink(0, max_num_seqs=2, has_peers=has_peers)


def routed(number: int, prompt: int = 3) -> RoutedRequest:
    return RoutedRequest(ask(number, prompt), 0.0, number)


def test_a_rank_is_ready_while_it_can_be_reached_and_nothing_else_is_told() -> None:
    rank = rank_link()
    assert rank.state is STARTING
    rank.note_report(report(0, READY, generation=1), 0.0)
    assert rank.state is STARTING, "it has not dialled yet"
    rank.attach(FakeLink(), ready(0, generation=1))
    assert rank.state is READY
    for state, generation, expected in (
        (DRAINING, 1, DRAINING), (DRAINING, 0, READY), (DOWN, 1, DOWN), (DOWN, 0, READY),
        (STARTING, 1, READY), (READY, 1, READY),
    ):  # fmt: skip
        rank.note_report(report(0, state, generation=generation), 0.0)
        assert rank.state is expected
    rank.detach("closed")
    assert rank.state is DOWN, "ready, but out of reach"
    for state, generation in ((STARTING, 2), (DOWN, 2), (LEFT, 2), (DEAD, 2), (DRAINING, 2)):
        rank.note_report(report(0, state, generation=generation), 0.0)
        assert rank.state is state
    rank.note_report(report(0, READY, generation=2), 0.0)
    assert rank.state is STARTING


def test_a_rank_out_of_reach_has_a_cause_though_nobody_has_told_one() -> None:
    rank = rank_link()
    rank.attach(FakeLink(), ready(0, generation=1))
    rank.note_report(report(0, READY, generation=1), 0.0)
    assert rank.cause is None
    rank.detach("silent for 5 s")
    assert rank.cause == "silent for 5 s"
    rank.note_report(report(0, DOWN, generation=1, cause="node b is lost"), 0.0)
    assert rank.cause == "node b is lost"


def test_a_rank_that_is_replaced_in_order_has_none() -> None:
    rank = rank_link()
    rank.attach(FakeLink(), ready(0, generation=1))
    rank.note_report(report(0, DRAINING, generation=1), 0.0)
    rank.detach("closed by the other side")
    assert rank.cause is None
    rank.note_report(report(0, STARTING, generation=2), 0.0)
    assert rank.cause is None
    rank.attach(FakeLink(), ready(0, generation=2))
    assert rank.cause is None


@pytest.mark.parametrize(
    ("state", "generation", "expected"),
    [
        (DOWN, 3, "why"),
        (LEFT, 3, "why"),
        (DEAD, 3, "why"),
        (READY, 3, None),
        (DOWN, 2, None),
        (STARTING, 4, "why"),
    ],
)
def test_the_cause_of_a_loss_is_that_of_the_start_that_was_lost(
    state: RankState, generation: int, expected: str | None
) -> None:
    rank = rank_link()
    assert rank.cause_of_loss(3) is None
    rank.note_report(report(0, state, generation=generation, cause="why"), 0.0)
    assert rank.cause_of_loss(3) == expected


def test_the_burden_is_what_is_left_to_compute() -> None:
    rank = rank_link()
    rank.attach(FakeLink(), ready(0))
    first, second = routed(1, 10), routed(2, 20)
    rank.put(first)
    rank.put(second)
    assert rank.burden.num_tokens == 2 * REQUEST_COST + 30
    rank.note_output(first)
    assert rank.burden.num_tokens == 2 * REQUEST_COST + 20
    rank.take(second)
    rank.take(first)
    assert rank.burden.num_tokens == 0
    rank.check_integrity()


def test_what_others_put_on_it_is_what_is_reported_beyond_our_own() -> None:
    rank = rank_link(has_peers=True)
    rank.attach(FakeLink(), ready(0))
    rank.put(routed(1, 10))
    rank.note_report(report(0, num_running=2, num_waiting=1, num_waiting_tokens=50, kv_usage=0.5), 1.0)
    assert rank.burden.num_tokens == 3 * REQUEST_COST + 50
    assert rank.burden.kv_usage == 0.5
    assert (rank.num_over, rank.num_queued, rank.num_queued_tokens) == (1, 1, 50)
    rank.note_report(report(0, num_running=0, num_waiting=0, num_waiting_tokens=0), 2.0)
    assert rank.burden.num_tokens == REQUEST_COST + 10, "never less than our own"


def test_there_is_room_while_slots_and_blocks_are_free_and_nothing_waits() -> None:
    rank = rank_link()
    assert not rank.has_room
    rank.attach(FakeLink(), ready(0))
    assert rank.has_room
    rank.note_report(report(0, kv_usage=0.95), 1.0)
    assert not rank.has_room
    rank.note_report(report(0, kv_usage=0.5), 2.0)
    assert rank.has_room
    rank.put(routed(1))
    rank.note_report(report(0, num_waiting=1), 3.0)
    assert not rank.has_room
    rank.note_report(report(0, num_running=1), 4.0)
    assert rank.has_room
    rank.put(routed(2))
    assert not rank.has_room


def test_load_of_another_start_says_nothing() -> None:
    rank = rank_link()
    rank.attach(FakeLink(), ready(0, generation=2))
    rank.note_report(report(0, generation=1, num_waiting=5, num_running=5), 1.0)
    assert (rank.num_queued, rank.statistics.scheduler.num_running) == (0, 0)


def test_its_numbers_are_those_told_last_and_none_run_while_it_is_lost() -> None:
    rank = rank_link()
    rank.attach(FakeLink(), ready(0))
    told = report(0, num_running=2, num_waiting=3, kv_usage=0.25, num_steps=9, step_age=1.5, is_paused=True)
    rank.note_report(told, 1.0)
    statistics = rank.statistics
    assert (statistics.scheduler.num_running, statistics.scheduler.num_waiting) == (2, 3)
    assert (statistics.scheduler.kv_usage, statistics.num_steps, statistics.last_step_age) == (0.25, 9, 1.5)
    assert statistics.is_paused
    rank.note_report(report(0, DOWN, num_restarts=3, cause="killed"), 2.0)
    rank.note_statistics(RankStatistics(rank=5, num_steps=11, state=READY))
    rank.detach("closed")
    statistics = rank.statistics
    assert (statistics.rank, statistics.num_steps, statistics.num_restarts, statistics.cause) == (
        0,
        11,
        3,
        "killed",
    )
    assert (statistics.scheduler.num_running, statistics.last_step_age) == (0, None)
    rank.attach(FakeLink(), ready(0, generation=1))
    assert (rank.statistics.num_steps, rank.statistics.num_restarts) == (11, 3), "it counts on"
    assert not rank.statistics.is_paused


def test_what_it_has_told_before_a_report_that_has_overtaken_it_is_not_taken_for_news() -> None:
    """It came by another way, and nothing that could put it right comes after it."""
    rank = rank_link()
    rank.attach(FakeLink(), ready(0))
    busy = SchedulerStatistics(num_blocks=8, num_free_blocks=5, num_running=1, num_prefix_hits=3)
    told = RankStatistics(rank=0, num_steps=9, state=READY, scheduler=busy, last_step_age=0.1)
    rank.note_statistics(told)
    assert rank.statistics.scheduler.num_running == 1, "there is no report yet"
    rank.note_report(report(0, num_running=0, num_steps=9), 1.0)
    rank.note_statistics(told)
    assert rank.statistics.scheduler.num_running == 0
    assert rank.statistics.last_step_age is None
    assert rank.statistics.scheduler.num_prefix_hits == 3, "what is counted is taken"
    rank.note_statistics(replace(told, num_steps=10))
    assert rank.statistics.scheduler.num_running == 1
