"""Immutable snapshots of a front end and its engine cores: state, health, numbers.

This module knows neither HTTP nor how an engine starts and ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from triolet.cluster.client import EngineClient, FrontEndPeer
from triolet.statistics import (
    EngineHealth,
    EngineState,
    EngineStatistics,
    FrontendStatistics,
    RankHealth,
    RankState,
)

__all__ = ["engine_health", "engine_statistics", "state_with_ranks"]


def state_with_ranks(state: EngineState, client: EngineClient | None) -> EngineState:
    """The state of an engine that is in ``state`` itself: degraded where not all of its cores serve."""
    if state is EngineState.READY and client is not None and set(client.rank_states) != {RankState.READY}:
        return EngineState.DEGRADED
    return state


def engine_health(
    state: EngineState,
    client: EngineClient | None,
    *,
    phase: str | None,
    phase_seconds: float | None,
    cause: str | None,
) -> EngineHealth:
    """With what is known of each core, and the greatest of their ages."""
    ranks = () if client is None else client.rank_statistics()
    return EngineHealth(
        state=state,
        phase=phase,
        phase_seconds=phase_seconds,
        last_step_age=_greatest(rank.last_step_age for rank in ranks),
        oldest_waiting_age=_greatest(rank.oldest_waiting_age for rank in ranks),
        cause=cause,
        ranks=tuple(map(RankHealth.of, ranks)),
    )


def engine_statistics(
    state: EngineState, front: FrontendStatistics, client: EngineClient | None
) -> EngineStatistics:
    """From live state, other front ends of the same cores included; no cores while there is no client."""
    peers = client.peer_statistics if isinstance(client, FrontEndPeer) else ()
    front = FrontendStatistics.total([front, *peers])
    return EngineStatistics(
        state=state,
        num_front_ends=1 + len(peers),
        ranks=() if client is None else client.rank_statistics(),
        outcomes=front.outcomes,
        num_prompt_tokens=front.num_prompt_tokens,
        num_generated_tokens=front.num_generated_tokens,
        time_to_first_token=front.time_to_first_token,
        inter_token_latency=front.inter_token_latency,
        request_latency=front.request_latency,
        params_n=front.params_n,
        params_max_tokens=front.params_max_tokens,
    )


def _greatest(ages: Iterable[float | None]) -> float | None:
    return max((age for age in ages if age is not None), default=None)
