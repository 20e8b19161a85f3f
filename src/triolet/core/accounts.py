"""What an engine core keeps about requests beyond what the scheduler needs: times, deadlines, rates.

Everything is told to it as it happens, on a clock that is passed in; it decides nothing. This module knows
neither the scheduler nor an event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from triolet.core.deadlines import Deadlines, RequestPhase
from triolet.core.recent_ends import RecentEnds
from triolet.plan import PlanRow, StepPlan
from triolet.request import FinishReason, Request, TokenOutput
from triolet.statistics import CoreStatistics, Histogram, IterationStatistics, SchedulerStatistics

__all__ = ["Accounts"]

logger = logging.getLogger("triolet.core")


@dataclass(slots=True)
class _Progress:
    """A request under way. Times on the clock; None for what has not happened yet."""

    num_prompt_tokens: int
    arrived: float
    started: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    num_generated_tokens: int = 0


class Accounts:
    """The books of one engine core. ``log_interval``: seconds between two lines in the log; 0: none."""

    def __init__(self, clock: Callable[[], float], log_interval: float) -> None:
        self._clock = clock
        self._log_interval = log_interval
        self._requests: dict[int, _Progress] = {}
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._last_iteration: IterationStatistics | None = None
        self._live = CoreStatistics()  # for its histograms, which are added to
        self._recent_ends = RecentEnds()
        self._logged_at = 0.0
        self._logged = (0, 0)
        self.deadlines = Deadlines()

    @property
    def request_ids(self) -> tuple[int, ...]:
        """Those under way, in the order in which they came."""
        return tuple(self._requests)

    def added(self, request: Request) -> None:
        """A request has been queued."""
        now = self._clock()
        if not self._requests:
            self._start_logging(now)
        self._requests[request.request_id] = _Progress(len(request.prompt_token_ids), now)
        self.deadlines.add(request.request_id, request.options, now)

    def planned(self, plan: StepPlan) -> None:
        """A step is going to be computed."""
        for row in plan.rows:
            progress = self._requests.get(row.request.request_id)
            if progress is not None and progress.started is None:
                progress.started = self._clock()
                self._live.queue_time.observe(progress.started - progress.arrived)
                self.deadlines.reach(row.request.request_id, RequestPhase.STARTED)

    def committed(self, plan: StepPlan, outputs: Sequence[TokenOutput]) -> list[TokenOutput]:
        """A step has been computed, and this came of it; → the same, with what is known here."""
        now = self._clock()
        self._last_iteration = IterationStatistics(
            step_id=plan.step_id,
            num_requests=len(plan.rows),
            num_prompt_tokens=sum(map(_num_prompt_tokens, plan.rows)),
            num_generated_tokens=sum(len(output.token_ids) for output in outputs),
            num_failed=sum(output.finish_reason is FinishReason.ERROR for output in outputs),
        )
        self._live.iteration_tokens.observe(plan.num_tokens)
        self._num_prompt_tokens += self._last_iteration.num_prompt_tokens
        self._num_generated_tokens += self._last_iteration.num_generated_tokens
        noted = []
        for output in outputs:
            noted.append(self._note_tokens(output, now))
            if output.finish_reason is not None:
                self.ended(output.request_id)
        return noted

    def moved(self, request_id: int) -> None:
        """Another engine has a request from here on; it counts as one of those that ended there."""
        self._take_out(request_id)

    def ended(self, request_id: int) -> None:
        """A request has come to its end, or been taken out."""
        progress = self._take_out(request_id)
        if progress is None:
            return
        self._recent_ends.add(self._clock())
        self._live.prompt_tokens.observe(progress.num_prompt_tokens)
        self._live.generation_tokens.observe(progress.num_generated_tokens)
        if progress.started is None or progress.first_token is None or progress.last_token is None:
            return
        decode_time = progress.last_token - progress.first_token
        self._live.decode_time.observe(decode_time)
        self._live.inference_time.observe(progress.last_token - progress.started)
        if progress.num_generated_tokens > 1:
            self._live.time_per_output_token.observe(decode_time / (progress.num_generated_tokens - 1))

    def _take_out(self, request_id: int) -> _Progress | None:
        progress = self._requests.pop(request_id, None)
        if progress is not None:
            self.deadlines.discard(request_id)
        return progress

    def retry_after(self, num_waiting: int) -> int:
        """Whole seconds until ``num_waiting`` requests will have ended, at the rate of the last ones."""
        return self._recent_ends.retry_after(num_waiting, self._clock())

    def statistics(self) -> CoreStatistics:
        """An immutable snapshot."""
        histograms = {
            one.name: value.copy()
            for one in fields(self._live)
            if isinstance(value := getattr(self._live, one.name), Histogram)
        }
        return CoreStatistics(
            last_iteration=self._last_iteration,
            num_computed_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            **histograms,
        )

    def log(self, scheduler: Callable[[], SchedulerStatistics]) -> None:
        """A line of statistics, if it is time for one; to be called while there is work."""
        now = self._clock()
        seconds = now - self._logged_at
        if not self._log_interval or seconds < self._log_interval:
            return
        num_prompt_tokens, num_generated_tokens = self._logged
        logger.info(
            "prompts %.1f tok/s, output %.1f tok/s, %s",
            (self._num_prompt_tokens - num_prompt_tokens) / seconds,
            (self._num_generated_tokens - num_generated_tokens) / seconds,
            _describe(scheduler()),
        )
        self._start_logging(now)

    def _start_logging(self, now: float) -> None:
        self._logged_at = now
        self._logged = (self._num_prompt_tokens, self._num_generated_tokens)

    def _note_tokens(self, output: TokenOutput, now: float) -> TokenOutput:
        progress = self._requests.get(output.request_id)
        if progress is None or not output.token_ids:
            return output
        progress.num_generated_tokens += len(output.token_ids)
        progress.last_token = now
        if progress.first_token is not None:
            return output
        progress.first_token = now
        self.deadlines.reach(output.request_id, RequestPhase.GENERATING)
        if progress.started is None:
            return output
        self._live.prefill_time.observe(now - progress.started)
        return replace(output, prefill_seconds=now - progress.started)


def _num_prompt_tokens(row: PlanRow) -> int:
    return max(0, min(len(row.request.prompt_token_ids) - row.start, row.num_tokens))


def _describe(scheduler: SchedulerStatistics) -> str:
    parts = [
        f"{scheduler.num_running} running",
        f"{scheduler.num_waiting} waiting",
        f"KV cache {scheduler.kv_usage:.1%} used",
    ]
    if scheduler.num_prefix_queries:
        parts.append(f"prefix hits {scheduler.num_prefix_hits / scheduler.num_prefix_queries:.1%}")
    if scheduler.num_draft_tokens:
        parts.append(f"drafts accepted {scheduler.num_accepted_tokens / scheduler.num_draft_tokens:.1%}")
    return ", ".join(parts)
