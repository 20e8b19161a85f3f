"""A simulation finds what is wrong: production classes are broken on purpose, and a few seeds tell."""

from __future__ import annotations

from typing import Any

import pytest
from tests.simulation.simulate import SimulationError, simulate

from triolet.cluster.dispatcher import Dispatcher
from triolet.cluster.rank_requests import RankRequests

MOST_SEEDS = 20


def nothing(*arguments: Any) -> None:
    """Forgotten."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "method"),
    [(Dispatcher, "_resend"), (RankRequests, "abort")],
    ids=["requests of a lost rank are forgotten", "engines compute on for clients that have left"],
)
def test_what_is_broken_is_found(monkeypatch: pytest.MonkeyPatch, cls: type[Any], method: str) -> None:
    monkeypatch.setattr(cls, method, nothing)
    with pytest.raises(SimulationError):
        simulate_all()


def simulate_all() -> None:
    for seed in range(MOST_SEEDS):
        simulate(seed)
