"""How much may wait for ranks: as much as at a scheduler, whatever a rank told when it had not begun yet."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.cluster.dispatched import Cluster
from tests.triolet.cluster.ranks import ask, said
from tests.triolet.scheduling.fake_runner import make_config, make_request

from triolet.errors import OverloadedError
from triolet.request import FinishReason
from triolet.scheduling.scheduler import Scheduler
from triolet.statistics import RankState


def is_refused(cluster: Cluster) -> bool:
    try:
        cluster.dispatcher.check_room(cluster.now)
    except OverloadedError:
        return True
    return False


def test_what_a_rank_told_before_it_began_does_not_count_as_waiting() -> None:
    """Its last report says that one waits; it has a slot for that one, and for another."""
    cluster = Cluster(ranks=range(1), max_num_seqs=2, max_num_queued_requests=1)
    cluster.add(ask(0))
    cluster.tell(0, num_running=0, num_waiting=1)
    for number in (1, 2):
        assert not is_refused(cluster)
        cluster.add(ask(number))
    assert is_refused(cluster)
    cluster.tell(0, num_running=2, num_waiting=1)
    assert is_refused(cluster)
    cluster.say(0, said(0, 7, reason=FinishReason.STOP))
    assert not is_refused(cluster)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 8), st.integers(1, 4), st.booleans(), st.booleans()
)
def test_one_rank_takes_as_many_as_a_scheduler_in_this_process(
    num_slots: int, limit: int, num_requests: int, num_new: int, has_begun: bool, has_told: bool
) -> None:
    cluster = Cluster(ranks=range(1), max_num_seqs=num_slots, max_num_queued_requests=limit)
    scheduler = Scheduler(make_config(max_num_seqs=num_slots, max_num_queued_requests=limit))
    for number in range(min(num_requests, num_slots + limit)):
        cluster.add(ask(number))
        scheduler.add(make_request(number, 1, 2))
    if has_begun:
        scheduler.schedule()
    if has_told:
        cluster.tell(0, num_running=scheduler.num_running, num_waiting=scheduler.num_waiting)
    new = [ask(100 + number) for number in range(num_new)]
    try:
        scheduler.check_room(num_new)
    except OverloadedError:
        with pytest.raises(OverloadedError, match="--max-num-queued-requests"):
            cluster.add(*new)
    else:
        cluster.add(*new)


def test_slots_of_a_rank_that_takes_nothing_new_are_not_free() -> None:
    cluster = Cluster(max_num_seqs=1, max_num_queued_requests=1)
    for number in range(2):
        cluster.add(ask(number))
    cluster.tell(0, RankState.DRAINING)
    cluster.say(0, said(0, 7, reason=FinishReason.STOP))
    for number in (2, 3):
        cluster.add(ask(number))
    assert is_refused(cluster), "one runs, and two wait for two ranks"
