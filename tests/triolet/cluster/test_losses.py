from __future__ import annotations

from tests.triolet.cluster.ranks import FakeLink, ask, ready, report

from triolet.cluster.losses import SECONDS_FOR_CAUSE, Losses
from triolet.cluster.rank_link import RankLink, RoutedRequest
from triolet.statistics import RankState


def lost_rank() -> tuple[RankLink, list[RoutedRequest]]:
    rank = RankLink(1, max_num_seqs=4, has_peers=False)
    rank.attach(FakeLink(), ready(1, generation=5))
    routed = RoutedRequest(ask(1), 0.0, 1)
    rank.put(routed)
    rank.note_output(routed)
    return rank, rank.detach("closed")


def test_the_cause_is_told_as_soon_as_it_is_known() -> None:
    rank, requests = lost_rank()
    losses = Losses()
    assert losses.next_due() is None
    losses.add(rank, "closed by the other side", requests, now=10.0)
    assert requests[0] in losses
    assert losses.next_due() == 10.0 + SECONDS_FOR_CAUSE
    assert losses.settle(10.5) == []
    rank.note_report(report(1, RankState.DOWN, generation=4, cause="that of before"), 10.5)
    assert losses.settle(10.6) == []
    rank.note_report(report(1, RankState.DOWN, generation=5, cause="killed by SIGKILL"), 10.7)
    assert losses.settle(10.7) == [(requests[0], "rank 1: killed by SIGKILL")]
    assert (losses.settle(99.0), losses.next_due(), requests[0] in losses) == ([], None, False)


def test_what_was_seen_is_told_when_the_cause_does_not_come() -> None:
    rank, requests = lost_rank()
    losses = Losses()
    losses.add(rank, "closed by the other side", requests, now=10.0)
    assert losses.settle(10.0 + SECONDS_FOR_CAUSE) == [(requests[0], "rank 1: closed by the other side")]
