"""``engine_statistics``: the numbers of a front end and of its engine core in one immutable snapshot."""

from __future__ import annotations

from triolet.cluster.client import EngineClient
from triolet.frontend.output_processor import FrontendStatistics
from triolet.statistics import (
    CoreStatistics,
    EngineState,
    EngineStatistics,
    Histogram,
    SchedulerStatistics,
)

__all__ = ["engine_statistics"]


def engine_statistics(
    state: EngineState, front: FrontendStatistics, client: EngineClient | None
) -> EngineStatistics:
    """From live state; zeros for a core that is not there yet."""
    return EngineStatistics(
        state=state,
        is_paused=client.is_paused if client else False,
        is_sleeping=client.is_sleeping if client else False,
        scheduler=client.scheduler_statistics() if client else SchedulerStatistics(),
        core=client.core_statistics() if client else CoreStatistics(),
        outcomes=dict(front.outcomes),
        num_steps=client.num_steps if client else 0,
        num_prompt_tokens=front.num_prompt_tokens,
        num_generated_tokens=front.num_generated_tokens,
        time_to_first_token=front.time_to_first_token.copy(),
        inter_token_latency=front.inter_token_latency.copy(),
        request_latency=front.request_latency.copy(),
        cancel_latency=client.cancel_latency.copy() if client else Histogram(),
        step_duration=client.step_duration.copy() if client else Histogram(),
        params_n=front.params_n.copy(),
        params_max_tokens=front.params_max_tokens.copy(),
    )
