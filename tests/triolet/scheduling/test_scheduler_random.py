"""Whatever is added, aborted and failed in whatever order, each request gets what it would get alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.triolet.scheduling.fake_runner import Harness, make_config, make_request

from triolet.errors import OverloadedError, PromptTooLongError
from triolet.request import RequestOptions


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
        )
        self.harness = Harness(config, depth)

    @rule(
        num_prompt_tokens=st.integers(1, 12),
        max_tokens=st.integers(1, 12),
        family=st.integers(0, 2),
        has_stops=st.booleans(),
        cache_salt=st.sampled_from(["", "", "salt"]),
        num_prompt_logprobs=st.sampled_from([None, None, None, 1]),
    )
    def add(
        self,
        num_prompt_tokens: int,
        max_tokens: int,
        family: int,
        has_stops: bool,
        cache_salt: str,
        num_prompt_logprobs: int | None,
    ) -> None:
        self.num_requests += 1
        request = make_request(
            self.num_requests,
            num_prompt_tokens,
            max_tokens,
            *((1, 2) if has_stops else ()),
            family=family,
            options=RequestOptions(cache_salt=cache_salt),
            num_prompt_logprobs=num_prompt_logprobs,
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
        elif scheduler.num_waiting >= config.max_num_queued_requests:
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
        assert not (is_stuck and self.harness.scheduler.has_unfinished)

    @precondition(lambda self: self.harness.runner.in_flight)
    @rule()
    def commit(self) -> None:
        self.harness.commit()

    @precondition(lambda self: self.harness.runner.in_flight)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        plan = self.harness.runner.in_flight[0]
        self.harness.commit({data.draw(st.integers(0, len(plan.rows) - 1)): "broken"})

    @rule(preempt_running=st.booleans())
    def reset_prefix_cache(self, preempt_running: bool) -> None:
        scheduler = self.harness.scheduler
        statistics = scheduler.statistics()
        is_idle = statistics.num_free_blocks == statistics.num_blocks
        assert scheduler.reset_prefix_cache(preempt_running=preempt_running) == (is_idle or preempt_running)

    @invariant()
    def books_agree(self) -> None:
        self.harness.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.harness.run()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=120,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_a_long_random_run(depth: int, windows: tuple[int | None, ...]) -> None:
    """30 000 random steps on one scheduler: nothing wears out, nothing starves."""
    generator = random.Random(depth)
    config = make_config(
        max_num_seqs=6,
        max_num_batched_tokens=12,
        max_model_len=32,
        num_blocks=14,
        windows=windows,
        max_num_queued_requests=8,
    )
    harness = Harness(config, depth)
    added_at: dict[int, int] = {}
    for step in range(30_000):
        match generator.choices(["add", "abort", "schedule", "commit", "reset"], [30, 10, 100, 100, 1])[0]:
            case "add" if harness.scheduler.num_waiting < config.max_num_queued_requests:
                stops = (3,) if generator.random() < 0.5 else ()
                lengths = generator.randint(1, 16), generator.randint(1, 16)
                request = make_request(step, *lengths, *stops, family=generator.randint(0, 5))
                harness.add(request)
                added_at[step] = step
            case "abort" if added_at:
                harness.abort(generator.choice(sorted(added_at)))
            case "schedule" if len(harness.runner.in_flight) < depth:
                harness.schedule()
            case "commit" if harness.runner.in_flight:
                plan = harness.runner.in_flight[0]
                is_broken = generator.random() < 0.01
                harness.commit({generator.randrange(len(plan.rows)): "broken"} if is_broken else None)
            case "reset":
                harness.scheduler.reset_prefix_cache(preempt_running=generator.random() < 0.5)
        harness.scheduler.check_integrity()
        for request_id in [request_id for request_id in added_at if harness.has_ended(request_id)]:
            del added_at[request_id]
        assert all(step - since < 2_000 for since in added_at.values()), "a request starves"
    harness.run()
    statistics = harness.scheduler.statistics()
    assert statistics.num_preemptions > 100
    assert 0 < statistics.num_prefix_hits < statistics.num_prefix_queries
