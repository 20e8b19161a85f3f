"""Engines are replaced one at a time."""

from __future__ import annotations

import pytest

from triolet.cluster.restart_turn import RestartTurn, restart_in_turn
from triolet.errors import ConflictError, EngineDeadError


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


@pytest.mark.anyio
async def test_those_that_cannot_be_replaced_keep_none_of_the_others_from_it() -> None:
    restarted: list[int] = []

    async def restart(rank: int) -> None:
        if rank in absent:
            raise ConflictError(f"engine {rank} is down")
        if rank == 5:
            raise EngineDeadError("engine 5 did not come back")
        restarted.append(rank)

    absent = {1}
    with pytest.raises(ConflictError, match=r"^engine 1 is down; engines 0, 2 are restarted$"):
        await restart_in_turn(range(3), restart)
    absent = {0, 1}
    with pytest.raises(ConflictError, match=r"^engine 0 is down; engine 1 is down$"):
        await restart_in_turn(range(2), restart)
    with pytest.raises(EngineDeadError):
        await restart_in_turn((4, 5, 6), restart)
    assert restarted == [0, 2, 4]
