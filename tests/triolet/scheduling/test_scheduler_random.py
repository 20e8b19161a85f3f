"""Whatever is added, aborted and failed in whatever order, each request gets what it would get alone."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.triolet.scheduling.fake_runner import Harness, make_config, make_request

from triolet.args import SchedulingPolicy, Speculation
from triolet.errors import OverloadedError, PromptTooLongError
from triolet.request import LogitsAdjustments, RequestOptions
from triolet.scheduling.scheduler import Pause


class SchedulerMachine(RuleBasedStateMachine):
    """One or two plans in flight over pools small enough to run out."""

    harness: Harness
    num_requests = 0

    @initialize(
        depth=st.integers(1, 2),
        max_num_seqs=st.integers(1, 5),
        extra_budget=st.integers(0, 8),
        num_blocks=st.integers(3, 12),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_queued_requests=st.integers(1, 6),
        windows=st.sampled_from([(None,), (None, 5), (3,), (None, 1, 9)]),
        enable_prefix_caching=st.sampled_from([True, True, False]),
        scheduling_policy=st.sampled_from(["fcfs", "priority"]),
        speculation=st.sampled_from(["off", "ngram", "suffix", "draft"]),
        threshold=st.sampled_from([0, 0, 1, 3]),
    )
    def start(
        self,
        depth: int,
        max_num_seqs: int,
        extra_budget: int,
        num_blocks: int,
        block_size: int,
        max_num_queued_requests: int,
        windows: tuple[int | None, ...],
        enable_prefix_caching: bool,
        scheduling_policy: SchedulingPolicy,
        speculation: Speculation,
        threshold: int,
    ) -> None:
        config = make_config(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget,
            max_model_len=20,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_queued_requests=max_num_queued_requests,
            windows=windows,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            speculation=speculation,
            long_prefill_token_threshold=threshold,
        )
        self.harness = Harness(config, depth)

    @rule(
        num_prompt_tokens=st.integers(1, 12),
        max_tokens=st.integers(1, 12),
        family=st.integers(0, 2),
        has_stops=st.booleans(),
        cache_salt=st.sampled_from(["", "", "salt"]),
        num_prompt_logprobs=st.sampled_from([None, None, None, 1]),
        adjustments=st.sampled_from([None, None, LogitsAdjustments(grammar="a")]),
        priority=st.integers(-1, 1),
        key=st.sampled_from("ab"),
    )
    def add(
        self,
        num_prompt_tokens: int,
        max_tokens: int,
        family: int,
        has_stops: bool,
        cache_salt: str,
        num_prompt_logprobs: int | None,
        adjustments: LogitsAdjustments | None,
        priority: int,
        key: str,
    ) -> None:
        self.num_requests += 1
        request = make_request(
            self.num_requests,
            num_prompt_tokens,
            max_tokens,
            *((1, 2) if has_stops else ()),
            family=family,
            options=RequestOptions(cache_salt=cache_salt, priority=priority, fairness_key=key),
            num_prompt_logprobs=num_prompt_logprobs,
            adjustments=adjustments,
        )
        config, scheduler = self.harness.config, self.harness.scheduler
        max_length = min(num_prompt_tokens + max_tokens, config.max_model_len)
        if any(
            group.window is None and max_length - 1 > group.num_blocks * config.block_size
            for group in config.layer_groups
        ):
            with pytest.raises(PromptTooLongError):
                scheduler.add(request)
        elif any(group.window is not None for group in config.layer_groups):
            try:
                self.harness.add(request)
            except (PromptTooLongError, OverloadedError):
                assert request.request_id not in self.harness.outcomes
        elif (
            scheduler.num_running + scheduler.num_waiting
            >= config.max_num_seqs + config.max_num_queued_requests
        ):
            with pytest.raises(OverloadedError):
                scheduler.add(request)
        else:
            self.harness.add(request)

    @precondition(lambda self: self.harness.outcomes)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.harness.abort(data.draw(st.sampled_from(sorted(self.harness.outcomes))))

    @precondition(lambda self: len(self.harness.runner.in_flight) < self.harness.depth)
    @rule()
    def schedule(self) -> None:
        plan = self.harness.schedule()
        is_stuck = plan is None and not self.harness.runner.in_flight
        assert not (is_stuck and self.harness.scheduler.has_work)

    @precondition(lambda self: self.harness.runner.in_flight)
    @rule()
    def commit(self) -> None:
        self.harness.commit()

    @precondition(lambda self: self.harness.runner.in_flight)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        plan = self.harness.runner.in_flight[0]
        self.harness.commit({data.draw(st.integers(0, len(plan.rows) - 1)): "broken"})

    @precondition(lambda self: self.harness.outcomes)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        self.harness.expire(data.draw(st.sampled_from(sorted(self.harness.outcomes))))

    @rule(pause=st.sampled_from([Pause.NOTHING, Pause.NOTHING, Pause.NEWCOMERS, Pause.ALL]))
    def pause(self, pause: Pause) -> None:
        self.harness.scheduler.pause(pause)

    @rule()
    def preempt_all(self) -> None:
        self.harness.scheduler.preempt_all()

    @rule(preempt_running=st.booleans())
    def reset_prefix_cache(self, preempt_running: bool) -> None:
        scheduler = self.harness.scheduler
        statistics = scheduler.statistics()
        is_idle = statistics.num_free_blocks == statistics.num_blocks
        assert scheduler.reset_prefix_cache(preempt_running=preempt_running) == (is_idle or preempt_running)

    @invariant()
    def books_agree(self) -> None:
        self.harness.scheduler.check_integrity()
        if not self.harness.config.enable_prefix_caching:
            self.harness.check_fairness()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.scheduler.pause(Pause.NOTHING)
            self.harness.run()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
