"""A hundred thousand random steps: nothing wears out, nobody starves, nobody gets more than a fair share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from tests.triolet.scheduling.fake_runner import Harness, make_config, make_request

from triolet.args import SchedulingPolicy, Speculation
from triolet.request import RequestOptions
from triolet.scheduling.scheduler import Pause

NUM_STEPS = 12_500
MAX_WAIT = 2_000
"""Random steps, of which two in five make or end a plan, within which every request ends under this load."""

ACTIONS = {
    "add": 60, "abort": 10, "expire": 4, "schedule": 200, "commit": 200, "pause": 2, "resume": 8, "reset": 2,
    "preempt_all": 1,
}  # fmt: skip


@dataclass
class Load:
    """Random requests to one scheduler, and how many steps each has been there while it was not paused."""

    harness: Harness
    generator: random.Random
    ages: dict[int, int] = field(default_factory=dict)
    num_requests: int = 0

    def step(self) -> None:
        generator, harness, scheduler = self.generator, self.harness, self.harness.scheduler
        match generator.choices(list(ACTIONS), list(ACTIONS.values()))[0]:
            case "add" if scheduler.num_waiting < harness.config.max_num_queued_requests:
                self.add()
            case "abort" if self.ages:
                harness.abort(generator.choice(sorted(self.ages)))
            case "expire" if self.ages:
                harness.expire(generator.choice(sorted(self.ages)))
            case "schedule" if len(harness.runner.in_flight) < harness.depth:
                harness.schedule()
            case "commit" if harness.runner.in_flight:
                num_rows = len(harness.runner.in_flight[0].rows)
                is_broken = generator.random() < 0.01
                harness.commit({generator.randrange(num_rows): "broken"} if is_broken else None)
            case "pause":
                scheduler.pause(generator.choice([Pause.NEWCOMERS, Pause.ALL]))
            case "resume":
                scheduler.pause(Pause.NOTHING)
            case "reset":
                scheduler.reset_prefix_cache(preempt_running=generator.random() < 0.5)
            case "preempt_all":
                scheduler.preempt_all()

    def add(self) -> None:
        generator = self.generator
        self.num_requests += 1
        options = RequestOptions(
            priority=generator.choice([-1, 0, 0, 1]), fairness_key=generator.choice("aaab")
        )
        request = make_request(
            self.num_requests,
            generator.randint(1, 16),
            generator.randint(1, 16),
            *((3,) if generator.random() < 0.5 else ()),
            family=generator.randint(0, 5),
            options=options,
        )
        self.harness.add(request)
        self.ages[self.num_requests] = 0

    def grow_older(self, num_steps: int) -> None:
        self.ages = {
            number: age + num_steps for number, age in self.ages.items() if not self.harness.has_ended(number)
        }


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize(
    ("depth", "windows", "is_caching", "speculation"),
    [
        (1, (None,), True, "ngram"),
        (1, (None, 6), False, "draft"),
        (2, (None, 6), True, "suffix"),
        (2, (None,), False, "draft"),
    ],
)
def test_a_long_random_run(
    policy: SchedulingPolicy,
    depth: int,
    windows: tuple[int | None, ...],
    is_caching: bool,
    speculation: Speculation,
) -> None:
    config = make_config(
        max_num_seqs=6,
        max_num_batched_tokens=16,
        max_model_len=32,
        num_blocks=14,
        windows=windows,
        max_num_queued_requests=12,
        enable_prefix_caching=is_caching,
        scheduling_policy=policy,
        speculation=speculation,
        long_prefill_token_threshold=5,
    )
    harness = Harness(config, depth)
    load = Load(harness, random.Random(f"{policy} {depth} {windows}"))
    for _ in range(NUM_STEPS):
        load.step()
        harness.scheduler.check_integrity()
        if not is_caching:
            harness.check_fairness()
        load.grow_older(int(harness.scheduler._pause is Pause.NOTHING))
        assert max(load.ages.values(), default=0) < MAX_WAIT, "a request starves"
    harness.scheduler.pause(Pause.NOTHING)
    harness.run()
    statistics = harness.scheduler.statistics()
    assert statistics.num_preemptions > 100
    assert (0 < statistics.num_prefix_hits < statistics.num_prefix_queries) == is_caching
    assert 0 < statistics.num_accepted_tokens < statistics.num_draft_tokens
