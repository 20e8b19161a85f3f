from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.statistics import (
    SECONDS_BUCKETS,
    CoreStatistics,
    EngineHealth,
    EngineState,
    EngineStatistics,
    FrontendStatistics,
    Histogram,
    RankHealth,
    RankState,
    RankStatistics,
    SchedulerStatistics,
)


def test_bounds_rise() -> None:
    assert list(SECONDS_BUCKETS) == sorted(set(SECONDS_BUCKETS))


@pytest.mark.parametrize(
    ("value", "bucket"), [(-1.0, 0), (0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.1, 2), (1e9, 2)]
)
def test_upper_bounds_are_inclusive_and_the_last_bucket_is_open(value: float, bucket: int) -> None:
    histogram = Histogram(bounds=(1.0, 2.0))
    histogram.observe(value)
    assert histogram.counts == [int(i == bucket) for i in range(3)]
    assert histogram.total == value


@given(st.lists(st.floats(min_value=0, max_value=1e6)))
def test_every_value_is_counted_once(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_a_copy_goes_its_own_way() -> None:
    histogram = Histogram()
    histogram.observe(1.0)
    copy = histogram.copy()
    histogram.observe(1.0)
    assert (sum(copy.counts), copy.total) == (1, 1.0)
    assert Histogram().counts != histogram.counts


@pytest.mark.parametrize(
    ("num_blocks", "num_free", "usage"), [(0, 0, 0.0), (8, 8, 0.0), (8, 6, 0.25), (8, 0, 1.0)]
)
def test_kv_usage(num_blocks: int, num_free: int, usage: float) -> None:
    assert SchedulerStatistics(num_blocks=num_blocks, num_free_blocks=num_free).kv_usage == usage


def test_schedulers_add_up() -> None:
    parts = [
        SchedulerStatistics(num_running=3, num_blocks=8, num_free_blocks=2),
        SchedulerStatistics(num_running=1, num_waiting=4, num_blocks=4, num_free_blocks=4),
    ]
    whole = SchedulerStatistics(num_running=4, num_waiting=4, num_blocks=12, num_free_blocks=6)
    assert SchedulerStatistics.total(parts) == whole
    assert SchedulerStatistics.total([]) == SchedulerStatistics()
    ranks = tuple(
        RankStatistics(rank=rank, scheduler=part, num_steps=rank + 1) for rank, part in enumerate(parts)
    )
    nothing = Histogram()
    engine = EngineStatistics(
        state=EngineState.READY,
        ranks=ranks,
        outcomes={},
        num_prompt_tokens=0,
        num_generated_tokens=0,
        time_to_first_token=nothing,
        inter_token_latency=nothing,
        request_latency=nothing,
    )
    assert (engine.scheduler, engine.num_steps) == (whole, 3)


@pytest.mark.parametrize(
    ("state", "ranks", "is_serving"),
    [
        (EngineState.READY, [RankState.READY], True),
        (EngineState.DEGRADED, [RankState.DOWN, RankState.READY], True),
        (EngineState.DEGRADED, [RankState.DOWN, RankState.STARTING], False),
        (EngineState.DEGRADED, [RankState.DRAINING], False),
        (EngineState.DRAINING, [RankState.READY], False),
        (EngineState.STARTING, [], False),
        (EngineState.DEAD, [RankState.READY], False),
    ],
)
def test_an_engine_serves_while_one_of_its_cores_does(
    state: EngineState, ranks: list[RankState], is_serving: bool
) -> None:
    told = tuple(RankHealth.of(RankStatistics(rank=rank, state=one)) for rank, one in enumerate(ranks))
    assert EngineHealth(state=state, ranks=told).is_serving is is_serving


def test_front_ends_are_added_up_without_changing_them() -> None:
    parts = [FrontendStatistics(), FrontendStatistics()]
    for part, seconds in zip(parts, (0.2, 3.0), strict=True):
        part.count("stop")
        part.num_prompt_tokens, part.num_generated_tokens = 10, 5
        part.time_to_first_token.observe(seconds)
        part.params_n.observe(2)
    parts[1].count("failed", 3)
    whole = FrontendStatistics.total(parts)
    assert whole.outcomes == {"stop": 2, "failed": 3}
    assert (whole.num_prompt_tokens, whole.num_generated_tokens) == (20, 10)
    assert (sum(whole.time_to_first_token.counts), whole.time_to_first_token.total) == (2, 3.2)
    assert sum(whole.params_n.counts) == 2
    assert [sum(part.time_to_first_token.counts) for part in parts] == [1, 1]
    assert whole.request_latency.counts == [0] * len(whole.request_latency.counts)


def test_a_rank_counts_on_from_what_it_had_counted_before() -> None:
    """What tells how things are is left as it is; neither snapshot is changed."""
    counted = Histogram(bounds=(1.0, 2.0), counts=[1, 2, 3], total=9.0)
    before = RankStatistics(
        rank=1, num_steps=5, step_duration=counted, cancel_latency=counted, is_paused=True,
        scheduler=SchedulerStatistics(num_running=3, num_prefix_hits=4),
        core=CoreStatistics(num_generated_tokens=6, queue_time=counted, generation_tokens=counted),
    )  # fmt: skip
    now = replace(before, is_paused=False, scheduler=SchedulerStatistics(num_running=1, num_prefix_hits=1))
    whole = now.after(before)
    twice = Histogram(bounds=(1.0, 2.0), counts=[2, 4, 6], total=18.0)
    assert (whole.num_steps, whole.step_duration, whole.cancel_latency) == (10, twice, twice)
    assert (whole.is_paused, whole.scheduler.num_running, whole.scheduler.num_prefix_hits) == (False, 1, 5)
    assert (whole.core.num_generated_tokens, whole.core.queue_time) == (12, twice)
    assert whole.core.generation_tokens == twice
    assert counted.counts == [1, 2, 3]
