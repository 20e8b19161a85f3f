"""What is held is late or doubtful when its time comes, and never once it is held no longer."""

from __future__ import annotations

from typing import Any

from tests.triolet.cluster.ranks import ask

from triolet.cluster.held_requests import HeldRequests
from triolet.cluster.rank_link import RoutedRequest


def routed(request_id: int, arrived: float = 0.0, **options: Any) -> RoutedRequest:
    return RoutedRequest(ask(request_id, **options), arrived, request_id)


def test_one_is_doubtful_again_and_again() -> None:
    held = HeldRequests(10.0)
    first, second = routed(1), routed(2)
    held.add(first, 0.0)
    held.add(second, 5.0)
    assert (held.next_due(), held.doubtful(9.0)) == (10.0, [])
    assert (held.doubtful(10.0), held.next_due()) == ([first], 15.0)
    assert (held.doubtful(20.0), list(held)) == ([second, first], [first, second])


def test_what_was_given_away_and_is_held_again_begins_anew() -> None:
    held = HeldRequests(10.0)
    one = routed(1)
    held.add(one, 0.0)
    held.discard(1)
    held.discard(1)
    assert (len(held), held.next_due(), held.doubtful(10.0)) == (0, None, [])
    held.add(one, 12.0)
    assert (held.doubtful(21.0), held.doubtful(22.0)) == ([], [one])
    held.check_integrity()


def test_time_outs_count_from_the_arrival_of_a_request() -> None:
    held = HeldRequests(10.0)
    one = routed(1, arrived=3.0, timeout=4.0)
    held.add(one, 5.0)
    assert (held.next_due(), held.late(6.9), held.late(7.0)) == (7.0, [], [one])
