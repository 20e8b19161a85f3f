"""Whatever is added, aborted and failed in whatever order, each request gets what it would get alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.triolet.scheduling.fake_runner import Harness, make_config, make_request

from triolet.errors import OverloadedError, PromptTooLongError


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
    )
    def start(
        self,
        depth: int,
        max_num_seqs: int,
        extra_budget: int,
        num_blocks: int,
        block_size: int,
        max_num_queued_requests: int,
    ) -> None:
        config = make_config(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + extra_budget,
            max_model_len=20,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_queued_requests=max_num_queued_requests,
        )
        self.harness = Harness(config, depth)

    @rule(num_prompt_tokens=st.integers(1, 12), max_tokens=st.integers(1, 12), has_stops=st.booleans())
    def add(self, num_prompt_tokens: int, max_tokens: int, has_stops: bool) -> None:
        self.num_requests += 1
        stops = (1, 2) if has_stops else ()
        request = make_request(self.num_requests, num_prompt_tokens, max_tokens, *stops)
        config, scheduler = self.harness.config, self.harness.scheduler
        max_length = min(num_prompt_tokens + max_tokens, config.max_model_len)
        if max_length - 1 > config.num_blocks * config.block_size:
            with pytest.raises(PromptTooLongError):
                scheduler.add(request)
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
        plan, _ = self.harness.runner.in_flight[0]
        self.harness.commit({data.draw(st.integers(0, len(plan.rows) - 1)): "broken"})

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
def test_a_long_random_run(depth: int) -> None:
    """50 000 random steps on one scheduler: nothing wears out, nothing starves."""
    generator = random.Random(depth)
    config = make_config(
        max_num_seqs=6, max_num_batched_tokens=12, max_model_len=32, num_blocks=14, max_num_queued_requests=8
    )
    harness = Harness(config, depth)
    added_at: dict[int, int] = {}
    for step in range(50_000):
        match generator.choices(["add", "abort", "schedule", "commit"], [3, 1, 10, 10])[0]:
            case "add" if harness.scheduler.num_waiting < config.max_num_queued_requests:
                stops = (3,) if generator.random() < 0.5 else ()
                request = make_request(step, generator.randint(1, 16), generator.randint(1, 16), *stops)
                harness.add(request)
                added_at[step] = step
            case "abort" if added_at:
                harness.abort(generator.choice(sorted(added_at)))
            case "schedule" if len(harness.runner.in_flight) < depth:
                harness.schedule()
            case "commit" if harness.runner.in_flight:
                plan, _ = harness.runner.in_flight[0]
                is_broken = generator.random() < 0.01
                harness.commit({generator.randrange(len(plan.rows)): "broken"} if is_broken else None)
        harness.scheduler.check_integrity()
        for request_id in [request_id for request_id in added_at if harness.has_ended(request_id)]:
            del added_at[request_id]
        assert all(step - since < 2_000 for since in added_at.values()), "a request starves"
    harness.run()
    assert harness.scheduler.statistics().num_preemptions > 100
