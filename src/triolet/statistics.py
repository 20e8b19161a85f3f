"""Numbers about a running engine: histograms that are added to, and immutable snapshots of everything.

This module knows nothing of Prometheus (see :mod:`triolet.metrics`), torch or an event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

__all__ = [
    "CoreStatistics",
    "EngineHealth",
    "EngineState",
    "EngineStatistics",
    "FrontendStatistics",
    "Histogram",
    "IterationStatistics",
    "RankHealth",
    "RankState",
    "RankStatistics",
    "SchedulerStatistics",
    "count_histogram",
    "token_histogram",
]

SECONDS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip

TOKEN_BUCKETS = tuple(float(2**exponent) for exponent in range(18))


class EngineState(StrEnum):
    """Where an engine is in its life."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    """A rank is not serving; the others are, if there are others."""
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class RankState(StrEnum):
    """Where one engine core among several is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """It finishes what it has and takes nothing new."""
    DOWN = "down"
    """It ended, or cannot be reached; it may come back."""
    LEFT = "left"
    """Its machine was told to leave, and did; it may come back."""
    DEAD = "dead"
    """It ended for good."""


@dataclass(slots=True)
class Histogram:
    """Counts of observed values per bucket; ``bounds`` are inclusive upper ends, the last bucket is open."""

    bounds: tuple[float, ...] = SECONDS_BUCKETS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        if len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.bounds)} bounds need one more count, not {len(self.counts)}")

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        return Histogram(self.bounds, list(self.counts), self.total)

    def add(self, other: Histogram) -> None:
        """Count in what another of the same bounds has observed."""
        assert self.bounds == other.bounds
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def after(self, earlier: Histogram) -> Histogram:
        """What both have observed; neither is changed."""
        whole = self.copy()
        whole.add(earlier)
        return whole


def count_histogram() -> Histogram:
    """For small numbers of things, 1 to 128."""
    return Histogram(TOKEN_BUCKETS[:8])


def token_histogram() -> Histogram:
    """For numbers of tokens, 1 to 131,072."""
    return Histogram(TOKEN_BUCKETS)


@dataclass(slots=True)
class FrontendStatistics:
    """Counts of a front end over all requests that ended, and times of those under way too. Seconds."""

    outcomes: dict[str, int] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    time_to_first_token: Histogram = field(default_factory=Histogram)
    inter_token_latency: Histogram = field(default_factory=Histogram)
    request_latency: Histogram = field(default_factory=Histogram)
    params_n: Histogram = field(default_factory=count_histogram)
    params_max_tokens: Histogram = field(default_factory=token_histogram)

    def count(self, outcome: str, number: int = 1) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + number

    @staticmethod
    def total(parts: Iterable[FrontendStatistics]) -> FrontendStatistics:
        """Those of several front ends as if they were one; none of them is kept or changed."""
        whole = FrontendStatistics()
        for part in parts:
            for outcome, number in part.outcomes.items():
                whole.count(outcome, number)
            whole.num_prompt_tokens += part.num_prompt_tokens
            whole.num_generated_tokens += part.num_generated_tokens
            whole.time_to_first_token.add(part.time_to_first_token)
            whole.inter_token_latency.add(part.inter_token_latency)
            whole.request_latency.add(part.request_latency)
            whole.params_n.add(part.params_n)
            whole.params_max_tokens.add(part.params_max_tokens)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """A snapshot of the scheduler."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_preemptions: int = 0
    num_prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    num_prefix_hits: int = 0
    """Those of them that were found."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    """Draft tokens that were right."""

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0

    def after(self, earlier: SchedulerStatistics) -> SchedulerStatistics:
        """The same, counting on from what one before it had counted."""
        counters = (
            "num_preemptions", "num_prefix_queries", "num_prefix_hits", "num_draft_tokens",
            "num_accepted_tokens",
        )  # fmt: skip
        return replace(self, **{name: getattr(self, name) + getattr(earlier, name) for name in counters})

    @staticmethod
    def total(parts: Iterable[SchedulerStatistics]) -> SchedulerStatistics:
        """Those of several schedulers as if they were one."""
        parts = tuple(parts)
        return SchedulerStatistics(
            **{
                one.name: sum(getattr(part, one.name) for part in parts)
                for one in fields(SchedulerStatistics)
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationStatistics:
    """One step of an engine core: how many requests were in it, and its tokens.

    ``num_prompt_tokens``: computed of prompts, those of preempted requests again. ``num_generated_tokens``:
    what came out. ``num_failed``: requests that it ended with an error.
    """

    step_id: int
    num_requests: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreStatistics:
    """A snapshot of what an engine core has done since it started.

    Times are in seconds. ``queue_time``: from a request's arrival to its first step; ``prefill_time``: from
    there to its first token; ``decode_time``: from there to its last; ``inference_time``: both.
    ``time_per_output_token``: the mean of a request over its tokens after the first. The histograms of tokens
    are of ended requests, ``iteration_tokens`` of steps. ``last_iteration`` is the step that ended last.
    """

    last_iteration: IterationStatistics | None = None
    num_computed_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    queue_time: Histogram = field(default_factory=Histogram)
    prefill_time: Histogram = field(default_factory=Histogram)
    decode_time: Histogram = field(default_factory=Histogram)
    inference_time: Histogram = field(default_factory=Histogram)
    time_per_output_token: Histogram = field(default_factory=Histogram)
    prompt_tokens: Histogram = field(default_factory=token_histogram)
    generation_tokens: Histogram = field(default_factory=token_histogram)
    iteration_tokens: Histogram = field(default_factory=token_histogram)

    def after(self, earlier: CoreStatistics) -> CoreStatistics:
        """The same, counting on from what one before it had counted."""
        histograms: dict[str, Any] = {
            one.name: value.after(getattr(earlier, one.name))
            for one in fields(self)
            if isinstance(value := getattr(self, one.name), Histogram)
        }
        return replace(
            self,
            num_computed_prompt_tokens=self.num_computed_prompt_tokens + earlier.num_computed_prompt_tokens,
            num_generated_tokens=self.num_generated_tokens + earlier.num_generated_tokens,
            **histograms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatistics:
    """A snapshot of one engine core, wherever it runs: of a remote one, what was heard of it last.

    ``cause``: why it ended the last time. ``num_restarts``: how often it was started again.
    ``cancel_latency``: from a caller leaving to its slot and blocks being free. Ages are in seconds:
    ``last_step_age`` since a step last ended, None when there is nothing to do; ``oldest_waiting_age`` of the
    request longest without a token, None if there is none.
    """

    rank: int
    state: RankState = RankState.READY
    num_restarts: int = 0
    cause: str | None = None
    scheduler: SchedulerStatistics = field(default_factory=SchedulerStatistics)
    core: CoreStatistics = field(default_factory=CoreStatistics)
    num_steps: int = 0
    step_duration: Histogram = field(default_factory=Histogram)
    cancel_latency: Histogram = field(default_factory=Histogram)
    is_paused: bool = False
    is_sleeping: bool = False
    last_step_age: float | None = None
    oldest_waiting_age: float | None = None

    def after(self, earlier: RankStatistics) -> RankStatistics:
        """The same, counting on from what one before it had counted."""
        return replace(
            self,
            scheduler=self.scheduler.after(earlier.scheduler),
            core=self.core.after(earlier.core),
            num_steps=self.num_steps + earlier.num_steps,
            step_duration=self.step_duration.after(earlier.step_duration),
            cancel_latency=self.cancel_latency.after(earlier.cancel_latency),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHealth:
    """What ``/health`` tells of one engine core."""

    rank: int
    state: RankState
    num_running: int
    num_waiting: int
    kv_usage: float
    num_restarts: int
    last_step_age: float | None
    cause: str | None

    @classmethod
    def of(cls, statistics: RankStatistics) -> RankHealth:
        """The part of the statistics that tells how it does."""
        return cls(
            rank=statistics.rank,
            state=statistics.state,
            num_running=statistics.scheduler.num_running,
            num_waiting=statistics.scheduler.num_waiting,
            kv_usage=statistics.scheduler.kv_usage,
            num_restarts=statistics.num_restarts,
            last_step_age=statistics.last_step_age,
            cause=statistics.cause,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """What ``/health`` tells. Ages are seconds; None where there is nothing to be old.

    ``phase`` is what the engine is doing while it starts, ``phase_seconds`` for how long.
    ``cause`` is the reason of death.
    """

    state: EngineState
    phase: str | None = None
    phase_seconds: float | None = None
    last_step_age: float | None = None
    oldest_waiting_age: float | None = None
    cause: str | None = None
    ranks: tuple[RankHealth, ...] = ()

    @property
    def is_serving(self) -> bool:
        """Whether new requests are taken."""
        if self.state is EngineState.DEGRADED:
            return any(rank.state is RankState.READY for rank in self.ranks)
        return self.state is EngineState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A snapshot of an engine: gauges from live state, counters and histograms since it started.

    ``ranks``: its engine cores, one in the simplest case, none before there is one. ``outcomes`` counts ended
    requests by outcome: a finish reason, ``failed``, ``refused`` or ``invalid``. ``params_…`` is what
    requests asked for. ``num_front_ends``: over how many processes that take requests it counts.
    """

    state: EngineState
    ranks: tuple[RankStatistics, ...]
    outcomes: dict[str, int]
    num_prompt_tokens: int
    num_generated_tokens: int
    time_to_first_token: Histogram
    inter_token_latency: Histogram
    request_latency: Histogram
    params_n: Histogram = field(default_factory=count_histogram)
    params_max_tokens: Histogram = field(default_factory=token_histogram)
    num_front_ends: int = 1

    @property
    def scheduler(self) -> SchedulerStatistics:
        """Of all engine cores together."""
        return SchedulerStatistics.total(rank.scheduler for rank in self.ranks)

    @property
    def num_steps(self) -> int:
        """Of all engine cores together."""
        return sum(rank.num_steps for rank in self.ranks)
