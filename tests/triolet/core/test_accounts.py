from __future__ import annotations

import pytest

from triolet.core.accounts import Accounts
from triolet.core.recent_ends import MAX_RETRY_AFTER
from triolet.plan import PlanRow, StepPlan
from triolet.request import FinishReason, Request, RequestOptions, TokenOutput
from triolet.statistics import Histogram, IterationStatistics, SchedulerStatistics


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def accounts(clock: Clock) -> Accounts:
    return Accounts(clock, log_interval=10)


def request(request_id: int, *, prompt: int = 5, options: RequestOptions | None = None) -> Request:
    return Request(
        request_id=request_id, prompt_token_ids=(1,) * prompt, max_tokens=9, seed=0,
        options=options or RequestOptions(),
    )  # fmt: skip


def plan_of(one: Request, *, start: int, num_tokens: int) -> StepPlan:
    row = PlanRow(
        request=one, slot=0, start=start, num_tokens=num_tokens, token_ids=(1,) * num_tokens,
        first_new_block=0, new_block_ids=((),), is_sampled=True,
    )  # fmt: skip
    return StepPlan(step_id=0, rows=(row,))


def run_one(accounts: Accounts, clock: Clock) -> list[TokenOutput]:
    """Two seconds in the queue, three of prefill in two chunks, then a token each second; → its outputs."""
    told: list[TokenOutput] = []
    one = request(1)
    accounts.added(one)
    clock.now += 2
    for start, num_tokens, outputs in ((0, 3, ()), (3, 2, (7,)), (5, 1, (8,)), (6, 1, (9,))):
        plan = plan_of(one, start=start, num_tokens=num_tokens)
        accounts.planned(plan)
        clock.now += 2 if start == 0 else 1
        reason = FinishReason.LENGTH if start == 6 else None
        token_output = TokenOutput(request_id=1, token_ids=outputs, finish_reason=reason)
        told += accounts.committed(plan, [token_output] if outputs else [])
    return told


def only(histogram: Histogram) -> float:
    assert sum(histogram.counts) == 1
    return histogram.total


def test_times_of_a_request(accounts: Accounts, clock: Clock) -> None:
    outputs = run_one(accounts, clock)
    found = accounts.statistics()
    assert [output.prefill_seconds for output in outputs] == [3, None, None], "the first token tells it"
    assert only(found.queue_time) == 2
    assert only(found.prefill_time) == 3
    assert only(found.decode_time) == 2
    assert only(found.inference_time) == 5
    assert only(found.time_per_output_token) == 1
    assert (only(found.prompt_tokens), only(found.generation_tokens)) == (5, 3)
    assert (found.num_computed_prompt_tokens, found.num_generated_tokens) == (5, 3)
    assert (sum(found.iteration_tokens.counts), found.iteration_tokens.total) == (4, 7)
    assert accounts.request_ids == ()
    assert found.last_iteration == IterationStatistics(
        step_id=0, num_requests=1, num_prompt_tokens=0, num_generated_tokens=1, num_failed=0
    )


def test_a_snapshot_does_not_change(accounts: Accounts, clock: Clock) -> None:
    before = accounts.statistics()
    run_one(accounts, clock)
    assert sum(before.queue_time.counts) == before.num_generated_tokens == 0


def test_a_request_that_never_began_has_no_times(accounts: Accounts) -> None:
    accounts.added(request(1))
    accounts.ended(1)
    accounts.ended(1)
    found = accounts.statistics()
    assert only(found.prompt_tokens) == 5
    assert sum(found.queue_time.counts) == sum(found.decode_time.counts) == 0


def test_a_request_that_another_engine_has_is_not_counted(accounts: Accounts, clock: Clock) -> None:
    """However far it had come: it is counted where it ends."""
    for one in (request(1), request(2)):
        accounts.added(one)
    accounts.planned(plan_of(request(2), start=0, num_tokens=5))
    clock.now += 1
    accounts.moved(1)
    accounts.moved(2)
    accounts.moved(2)
    found = accounts.statistics()
    assert sum(found.prompt_tokens.counts) == sum(found.generation_tokens.counts) == 0
    assert sum(found.inference_time.counts) == 0
    assert accounts.request_ids == ()
    assert len(accounts.deadlines) == 0


def test_a_preempted_request_has_begun_once(accounts: Accounts, clock: Clock) -> None:
    one = request(1, options=RequestOptions(queue_timeout=1))
    accounts.added(one)
    accounts.planned(plan_of(one, start=0, num_tokens=5))
    clock.now += 5
    accounts.planned(plan_of(one, start=0, num_tokens=5))
    assert only(accounts.statistics().queue_time) == 0
    assert list(accounts.deadlines.take_late(clock.now)) == []


def test_retry_after_follows_the_rate_of_the_last_requests(accounts: Accounts, clock: Clock) -> None:
    assert accounts.retry_after(1000) == 1
    for number in range(20):
        accounts.added(request(number))
        clock.now += 0.5
        accounts.ended(number)
    assert accounts.retry_after(0) == 1
    assert accounts.retry_after(30) == 15
    clock.now += 10
    assert accounts.retry_after(30) == 30
    assert accounts.retry_after(10**9) == MAX_RETRY_AFTER


def test_a_line_in_the_log_each_interval_while_there_is_work(
    accounts: Accounts, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="triolet")

    def scheduler() -> SchedulerStatistics:
        return SchedulerStatistics(
            num_running=1, num_waiting=2, num_blocks=8, num_free_blocks=6, num_prefix_queries=10,
            num_prefix_hits=4, num_draft_tokens=4, num_accepted_tokens=3,
        )  # fmt: skip

    clock.now += 1000  # idle, which is not to count
    run_one(accounts, clock)
    accounts.log(scheduler)
    assert caplog.messages == []
    clock.now += 3
    accounts.log(scheduler)
    accounts.log(scheduler)
    assert caplog.messages == [
        "prompts 0.5 tok/s, output 0.3 tok/s, 1 running, 2 waiting, KV cache 25.0% used, prefix hits 40.0%, "
        "drafts accepted 75.0%"
    ]
    clock.now += 10
    accounts.log(SchedulerStatistics)
    assert caplog.messages[1:] == [
        "prompts 0.0 tok/s, output 0.0 tok/s, 0 running, 0 waiting, KV cache 0.0% used"
    ]


def test_no_interval_no_line(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="triolet")
    accounts = Accounts(clock, log_interval=0)
    clock.now += 1000
    accounts.log(SchedulerStatistics)
    assert caplog.messages == []
