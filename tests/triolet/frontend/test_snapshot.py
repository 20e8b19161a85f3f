from __future__ import annotations

import pytest
from tests.fakes import FakeRunner, fake_core

from triolet.core.service import CoreService
from triolet.frontend.snapshot import engine_health, engine_statistics, state_with_ranks
from triolet.statistics import EngineState, FrontendStatistics, RankState, RankStatistics


def test_a_snapshot_without_a_core_is_of_zeros_and_does_not_change() -> None:
    front = FrontendStatistics(num_prompt_tokens=3)
    front.count("stop")
    snapshot = engine_statistics(EngineState.STARTING, front, None)
    front.count("stop")
    front.params_n.observe(1)
    assert (snapshot.outcomes, snapshot.num_prompt_tokens, snapshot.num_steps) == ({"stop": 1}, 3, 0)
    assert sum(snapshot.params_n.counts) == 0
    assert snapshot.ranks == ()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("state", "ranks", "expected"),
    [
        (EngineState.READY, (RankState.READY, RankState.READY), EngineState.READY),
        (EngineState.READY, (RankState.READY, RankState.DOWN), EngineState.DEGRADED),
        (EngineState.READY, (RankState.STARTING,), EngineState.DEGRADED),
        (EngineState.DRAINING, (RankState.READY, RankState.DOWN), EngineState.DRAINING),
        (EngineState.STARTING, (RankState.STARTING,), EngineState.STARTING),
    ],
)
async def test_an_engine_is_degraded_while_not_all_of_its_cores_serve(
    state: EngineState, ranks: tuple[RankState, ...], expected: EngineState
) -> None:
    assert state_with_ranks(state, RanksClient(ranks)) is expected
    assert state_with_ranks(state, None) is state


@pytest.mark.anyio
async def test_health_tells_of_every_core_and_the_greatest_of_their_ages() -> None:
    client = RanksClient((RankState.READY, RankState.DOWN, RankState.READY))
    health = engine_health(EngineState.DEGRADED, client, phase=None, phase_seconds=None, cause=None)
    assert [rank.state for rank in health.ranks] == ["ready", "down", "ready"]
    assert (health.last_step_age, health.oldest_waiting_age) == (2.0, None)


class RanksClient(CoreService):
    """Knows of ranks in these states, and nothing else."""

    def __init__(self, states: tuple[RankState, ...]) -> None:
        super().__init__(lambda on_phase: fake_core(FakeRunner()))
        self._states = states

    @property
    def rank_states(self) -> tuple[RankState, ...]:
        return self._states

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        return tuple(
            RankStatistics(rank=rank, state=state, last_step_age=float(rank) if rank else None)
            for rank, state in enumerate(self._states)
        )
