"""Engines are replaced one at a time."""

from __future__ import annotations

import pytest

from triolet.cluster.restart_turn import RestartTurn
from triolet.errors import ConflictError


def test_one_at_a_time() -> None:
    turn = RestartTurn()
    with (
        turn.of(0),
        pytest.raises(ConflictError, match="engine 0 is being restarted: one at a time"),
        turn.of(1),
    ):
        raise AssertionError("it is not its turn")
    with turn.of(1):
        pass


def test_the_turn_ends_also_where_it_fails() -> None:
    turn = RestartTurn()
    with pytest.raises(ValueError, match="in vain"), turn.of(0):
        raise ValueError("in vain")
    with turn.of(1):
        pass
