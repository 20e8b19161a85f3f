"""How much may be asked of ranks at once, and for how long it is held for them."""

from __future__ import annotations

import pytest
from tests.triolet.cluster.dispatched import Cluster
from tests.triolet.cluster.ranks import ask

from triolet.errors import InvalidRequestError


def test_more_than_others_can_wait_for_is_refused() -> None:
    cluster = Cluster()
    long = tuple(range(70_000))
    with pytest.raises(InvalidRequestError, match=r"^n: .*128 answers, is 8960000 tokens") as caught:
        cluster.add(*[ask(number, long) for number in range(128)])
    assert (caught.value.param, cluster.added(0), cluster.dispatcher.num_requests) == ("n", [], 0)
