"""A dispatcher and the links of its ranks: what the tests of a dispatcher share."""

from __future__ import annotations

from typing import Any

from tests.triolet.cluster.ranks import FakeLink, ready, report, router_args

from triolet.cluster.dispatcher import Dispatcher
from triolet.request import Request, TokenOutput
from triolet.statistics import RankState

__all__ = ["Cluster"]


class Cluster:
    """A dispatcher over two ranks that can be reached, and their links."""

    def __init__(self, *, ranks: range = range(2), has_peers: bool = False, **options: Any) -> None:
        self.dispatcher = Dispatcher(router_args(**options), ranks, has_peers=has_peers)
        self.links = {rank: FakeLink() for rank in ranks}
        self.generations = dict.fromkeys(ranks, 0)
        self.now = 0.0
        for rank in ranks:
            self.attach(rank)

    def attach(self, rank: int) -> None:
        self.dispatcher.attach(self.links[rank], ready(rank, self.generations[rank]), self.now)
        self.dispatcher.check_integrity()

    def add(self, *requests: Request) -> None:
        self.dispatcher.add(requests, self.now)
        self.dispatcher.check_integrity()

    def say(self, rank: int, *outputs: TokenOutput) -> None:
        self.dispatcher.receive(self.dispatcher.ranks[rank], self.links[rank], outputs, self.now)
        self.dispatcher.check_integrity()

    def lose(self, rank: int, reason: str = "closed by the other side") -> None:
        self.dispatcher.detach(self.dispatcher.ranks[rank], self.links[rank], reason, self.now)
        self.links[rank] = FakeLink()
        self.generations[rank] += 1
        self.dispatcher.check_integrity()

    def tell(self, rank: int, state: RankState = RankState.READY, **fields: Any) -> None:
        told = report(rank, state, **{"generation": self.generations[rank], **fields})
        self.dispatcher.update([told], self.now)
        self.dispatcher.check_integrity()

    def added(self, rank: int) -> list[int]:
        """Ids that were sent to a rank since the last time."""
        return [request.request_id for request in self.links[rank].added()]

    def outputs(self) -> list[TokenOutput]:
        return self.dispatcher.take_outputs()
