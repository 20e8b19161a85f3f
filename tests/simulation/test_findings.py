"""A simulation finds what is wrong: production classes are broken on purpose, and a few seeds tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.simulation.simulate import SimulationError, simulate

from triolet.cluster.dispatcher import Dispatcher
from triolet.cluster.rank_requests import FrontEndRequests, RankRequests

MOST_SEEDS = 20


abort = RankRequests.abort


def nothing(*arguments: Any, **options: Any) -> None:
    """Forgotten."""


def abort_as_ended(
    requests: RankRequests, front_end: FrontEndRequests, request_ids: Iterable[int], **options: Any
) -> None:
    """Whether another engine has them is forgotten."""
    abort(requests, front_end, request_ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "method", "broken"),
    [
        (Dispatcher, "_resend", nothing),
        (RankRequests, "abort", nothing),
        (RankRequests, "abort", abort_as_ended),
    ],
    ids=[
        "requests of a lost rank are forgotten",
        "engines compute on for clients that have left",
        "requests count where they only waited",
    ],
)
def test_what_is_broken_is_found(
    monkeypatch: pytest.MonkeyPatch, cls: type[Any], method: str, broken: Callable[..., None]
) -> None:
    monkeypatch.setattr(cls, method, broken)
    with pytest.raises(SimulationError):
        simulate_all()


def simulate_all() -> None:
    for seed in range(MOST_SEEDS):
        simulate(seed)
