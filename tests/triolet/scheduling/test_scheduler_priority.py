"""Priorities, fair shares, sharing a step among prompts, pausing and expiring."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.triolet.scheduling.fake_runner import Harness, make_config, make_request, shape

from triolet.args import SchedulingPolicy
from triolet.plan import StepPlan
from triolet.request import FinishReason, Request, RequestOptions
from triolet.scheduling.prompt_pace import MIN_CHUNK
from triolet.scheduling.scheduler import Pause


def request(
    request_id: int, num_prompt_tokens: int, max_tokens: int, *, priority: int = 0, key: str = ""
) -> Request:
    options = RequestOptions(priority=priority, fairness_key=key)
    return make_request(request_id, num_prompt_tokens, max_tokens, options=options)


def running(harness: Harness) -> set[int]:
    return {request_id for request_id in harness.outcomes if harness.scheduler.is_holding(request_id)}


# --- priorities ------------------------------------------------------------------------------------------


def test_the_more_urgent_takes_the_slot_of_the_least_urgent_that_came_last() -> None:
    harness = Harness(make_config(max_num_seqs=3, scheduling_policy="priority"))
    for request_id, priority in enumerate([1, 5, 5]):
        harness.add(request(request_id, 4, 10, priority=priority))
    harness.step()
    harness.add(request(3, 4, 3, priority=2))
    assert shape(harness.schedule()) == [(0, 4, 1), (1, 4, 1), (3, 0, 4)]
    harness.commit()
    assert harness.scheduler.statistics().num_preemptions == 1
    while not harness.has_ended(3):
        harness.step()
    harness.step()
    assert running(harness) == {0, 1, 2}
    harness.run()


def test_the_more_urgent_takes_blocks_too() -> None:
    harness = Harness(make_config(num_blocks=6, max_model_len=24, scheduling_policy="priority"))
    harness.add(request(0, 12, 8, priority=3))
    harness.step()
    harness.add(request(1, 12, 8, priority=1))
    assert shape(harness.schedule()) == [(1, 0, 12)]
    harness.commit()
    harness.run()


def test_a_plan_in_flight_keeps_its_slot_and_then_the_more_urgent_has_it() -> None:
    harness = Harness(make_config(max_num_seqs=1, scheduling_policy="priority"), depth=2)
    harness.add(request(0, 4, 10, priority=3))
    harness.schedule()
    harness.add(request(1, 4, 2, priority=1))
    assert harness.schedule() is None
    harness.commit()
    assert shape(harness.schedule()) == [(1, 0, 4)]
    harness.commit()
    harness.run()


@pytest.mark.parametrize(("policy", "priority"), [("fcfs", -9), ("priority", 3)])
def test_nothing_else_is_thrown_out_for_a_newcomer(policy: SchedulingPolicy, priority: int) -> None:
    harness = Harness(make_config(max_num_seqs=1, scheduling_policy=policy))
    harness.add(request(0, 4, 10, priority=3))
    harness.step()
    harness.add(request(1, 4, 2, priority=priority))
    harness.run()
    assert harness.scheduler.statistics().num_preemptions == 0


def test_a_flood_of_urgent_requests_does_not_starve_the_others() -> None:
    harness = Harness(make_config(max_num_seqs=2, scheduling_policy="priority"))
    harness.add(request(0, 4, 8, priority=9))
    for number in range(1, 400):
        harness.add(request(number, 4, 2, priority=0))
        harness.step()
        if harness.has_ended(0):
            break
    assert harness.has_ended(0)
    assert number > 32
    harness.run()


# --- fair shares -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_caller_with_many_requests_leaves_half_to_one_with_few(policy: SchedulingPolicy) -> None:
    harness = Harness(make_config(max_num_seqs=2, max_num_queued_requests=1000, scheduling_policy=policy))
    for number in range(500):
        harness.add(request(number, 4, 6, key="many"))
    for _ in range(20):
        harness.step()
    for number in range(1000, 1010):
        harness.add(request(number, 4, 6, key="few"))
    served: Counter[bool] = Counter()
    while not all(harness.has_ended(number) for number in range(1000, 1010)):
        for output in harness.step():
            served[output.request_id >= 1000] += len(output.token_ids)
    assert served[True] == 60
    assert served[False] <= 60 + 2 * 10


# --- sharing a step among prompts ------------------------------------------------------------------------


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8, max_model_len=400, num_blocks=200))
    harness.add(make_request(0, 300, 2))
    harness.step()
    harness.add(make_request(1, 6, 2))
    steps = 0
    while not harness.outcomes[1].token_ids:
        harness.step()
        steps += 1
    assert steps == 2
    harness.run()


def test_a_long_prompt_gets_half_of_each_step_however_many_short_ones_come() -> None:
    harness = Harness(
        make_config(max_num_seqs=16, max_num_batched_tokens=16, max_model_len=200, num_blocks=500)
    )
    harness.add(make_request(0, 160, 1))
    for number in range(1, 41):
        harness.add(make_request(number, 5, 1))
        plan = harness.schedule()
        assert plan is not None
        for row in plan.rows:
            if row.request.request_id == 0:
                assert row.num_tokens >= min(8, 160 - row.start)
        harness.commit()
        if harness.has_ended(0):
            break
    assert number <= 20
    harness.run()


def test_of_two_long_prompts_the_first_is_not_slowed_down() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    harness.add(make_request(0, 24, 1))
    harness.add(make_request(1, 24, 1))
    plans = []
    for _ in range(3):
        plans.append(shape(harness.schedule()))
        harness.commit()
    assert plans == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 8)]]
    harness.run()


def test_a_threshold_caps_each_prompt_while_others_decode() -> None:
    config = make_config(max_num_batched_tokens=16, long_prefill_token_threshold=3)
    harness = Harness(config)
    harness.add(make_request(0, 12, 30))
    assert shape(harness.schedule()) == [(0, 0, 12)], "nobody decodes yet"
    harness.commit()
    harness.add(make_request(1, 7, 2))
    harness.add(make_request(2, 2, 2))
    assert shape(harness.schedule()) == [(0, 12, 1), (1, 0, 3), (2, 0, 2)]
    harness.commit()
    assert shape(harness.schedule()) == [(0, 13, 1), (2, 2, 1), (1, 3, 3)]
    harness.commit()
    harness.run()


# --- pausing and expiring --------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_full_pause_schedules_nothing_and_leaves_nothing_to_do(depth: int) -> None:
    harness = Harness(make_config(), depth)
    harness.add(make_request(0, 4, 5))
    harness.schedule()
    harness.scheduler.pause(Pause.ALL)
    assert harness.scheduler.has_work, "a plan is in flight"
    harness.commit()
    assert harness.scheduler.schedule() is None
    assert harness.scheduler.has_unfinished
    assert not harness.scheduler.has_work
    harness.scheduler.pause(Pause.NOTHING)
    assert harness.scheduler.has_work
    harness.run()


def test_a_pause_for_newcomers_lets_what_has_begun_end() -> None:
    harness = Harness(make_config())
    harness.add(make_request(0, 4, 5))
    harness.add(make_request(1, 4, 5))
    harness.step()
    harness.scheduler.pause(Pause.NEWCOMERS)
    harness.add(make_request(2, 4, 5))
    harness.scheduler.preempt_all()
    assert harness.scheduler.has_work, "what was thrown out has begun"
    while harness.scheduler.has_work:
        harness.step()
    assert [harness.has_ended(number) for number in range(3)] == [True, True, False]
    assert harness.scheduler.schedule() is None
    harness.scheduler.pause(Pause.NOTHING)
    harness.run()


def test_all_that_runs_can_be_thrown_out_at_once() -> None:
    harness = Harness(make_config(), depth=2)
    for number in range(3):
        harness.add(make_request(number, 4, 5))
    harness.step()
    harness.scheduler.preempt_all()
    assert harness.scheduler.num_running == 0
    harness.commit()
    assert harness.scheduler.num_waiting == 3
    harness.run()


@pytest.mark.parametrize("where", ["waiting", "running", "in flight"])
def test_a_late_request_ends_wherever_it_is(where: str) -> None:
    harness = Harness(make_config(max_num_seqs=1), depth=2)
    harness.add(make_request(0, 4, 9))
    harness.add(make_request(1, 4, 2))
    harness.schedule()
    if where == "running":
        harness.commit()
    late = 1 if where == "waiting" else 0
    output = harness.expire(late)
    assert output is not None
    assert (output.request_id, output.token_ids) == (late, ())
    assert output.finish_reason is FinishReason.TIMEOUT
    assert harness.scheduler.expire(late) is None
    harness.run()


def seconds_of(plan: StepPlan) -> float:
    """A machine on which each token costs 0.5 ms, and more the more there are before it; a step 5 ms."""
    return 0.005 + sum(row.num_tokens * 5e-4 * (1 + row.start / 500) for row in plan.rows)


def test_a_long_prompt_holds_those_who_generate_up_only_so_much() -> None:
    harness = Harness(
        make_config(max_num_seqs=5, max_num_batched_tokens=64, max_model_len=900, num_blocks=500)
    )
    for number in range(4):
        harness.add(make_request(number, 4, 300))
    for _ in range(8):
        harness.step_plan(seconds_of)
    undisturbed = seconds_of(harness.step_plan(seconds_of))
    harness.add(make_request(9, 800, 1))
    chunks = []
    while not harness.has_ended(9):
        plan = harness.step_plan(seconds_of)
        chunks.append(next(row for row in plan.rows if row.request.request_id == 9).num_tokens)
        assert len(plan.rows) == 5
        if len(chunks) > 4:  # by then it is known what a token costs
            assert seconds_of(plan) < 3 * undisturbed
    assert chunks[4] > chunks[-2] >= MIN_CHUNK
    harness.run()
