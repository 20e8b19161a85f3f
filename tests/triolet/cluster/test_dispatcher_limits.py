"""How much may be asked of ranks at once, and for how long it is held for them."""

from __future__ import annotations

import pytest
from tests.triolet.cluster.dispatched import Cluster
from tests.triolet.cluster.ranks import ask

from triolet.errors import InvalidRequestError, OverloadedError
from triolet.statistics import RankState


def test_more_than_others_can_wait_for_is_refused() -> None:
    cluster = Cluster()
    long = tuple(range(70_000))
    with pytest.raises(InvalidRequestError, match=r"^n: .*128 answers, is 8960000 tokens") as caught:
        cluster.add(*[ask(number, long) for number in range(128)])
    assert (caught.value.param, cluster.added(0), cluster.dispatcher.num_requests) == ("n", [], 0)


def test_a_request_for_one_rank_counts_what_waits_for_that_one() -> None:
    cluster = Cluster(max_num_seqs=1, max_num_queued_requests=1)
    for number in range(2):
        cluster.add(ask(number, data_parallel_rank=0))
    with pytest.raises(OverloadedError, match=r"1 requests are waiting .* exceed 1 "):
        cluster.add(ask(2, data_parallel_rank=0))
    cluster.add(ask(3, data_parallel_rank=1))
    assert (cluster.added(0), cluster.added(1)) == ([0, 1], [3])


def test_a_request_for_one_rank_counts_the_prompts_that_wait_for_that_one() -> None:
    cluster = Cluster(max_num_seqs=1, max_num_queued_tokens=10)
    for number in range(2):
        cluster.add(ask(number, 5, data_parallel_rank=0))
    with pytest.raises(OverloadedError, match="with the 5 of this one they would exceed 10 "):
        cluster.add(ask(2, 5, data_parallel_rank=0))
    cluster.add(ask(3, 5, data_parallel_rank=1))


@pytest.mark.parametrize("state", [RankState.DOWN, RankState.LEFT])
def test_what_is_held_for_ranks_that_do_not_come_back_ends_in_time(state: RankState) -> None:
    cluster = Cluster(cluster_join_timeout=30.0)
    cluster.add(ask(0, data_parallel_rank=1))
    cluster.lose(1)
    cluster.tell(1, state, cause="node b is lost")
    cluster.now = 29.0
    cluster.dispatcher.expire(cluster.now)
    assert (cluster.outputs(), cluster.dispatcher.next_due()) == ([], 30.0)
    cluster.tell(1, RankState.STARTING)
    cluster.dispatcher.expire(30.0)
    assert (cluster.outputs(), cluster.dispatcher.next_due()) == ([], 60.0), "it loads"
    cluster.tell(1, state, cause="node b is lost")
    cluster.dispatcher.expire(60.0)
    (end,) = cluster.outputs()
    assert (end.error, end.is_engine_dead) == ("rank 1: node b is lost", True)
    assert cluster.dispatcher.next_due() is None
