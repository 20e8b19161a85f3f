from __future__ import annotations

from triolet.core.step_books import StepBooks
from triolet.plan import StepPlan, StepResult
from triolet.request import Request, TokenOutput


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plan(step_id: int) -> StepPlan:
    return StepPlan(step_id=step_id, rows=())


def result(step_id: int, seconds: float | None = 0.5) -> StepResult:
    return StepResult(step_id=step_id, token_ids=(), logprobs=(), errors={}, seconds=seconds)


def request(request_id: int) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(1,), max_tokens=1, seed=0)


def test_age_counts_from_the_last_step_or_the_first_one_planned() -> None:
    clock = Clock()
    books = StepBooks(clock)
    assert books.last_step_age() is None
    books.planned(plan(0))
    clock.now = 2.0
    assert books.last_step_age() == 2.0
    books.committed(plan(0), result(0), has_unfinished=True)
    clock.now = 3.0
    assert books.last_step_age() == 1.0
    books.resumed()
    assert books.last_step_age() is None
    books.planned(plan(1))
    books.committed(plan(1), result(1), has_unfinished=False)
    assert books.last_step_age() is None


def test_steps_without_a_known_duration_are_counted_all_the_same() -> None:
    books = StepBooks(Clock())
    for step_id, seconds in enumerate((0.25, None)):
        books.planned(plan(step_id))
        books.committed(plan(step_id), result(step_id, seconds), has_unfinished=True)
    assert (books.num_steps, books.num_in_flight) == (2, 0)
    assert (sum(books.step_duration.counts), books.step_duration.total) == (1, 0.25)


def test_who_leaves_is_gone_when_the_last_step_planned_before_has_ended() -> None:
    clock = Clock()
    books = StepBooks(clock)
    books.left(1)
    assert (sum(books.cancel_latency.counts), books.cancel_latency.total) == (1, 0.0)
    books.planned(plan(0))
    books.planned(plan(1))
    books.left(2)
    clock.now = 1.0
    books.committed(plan(0), result(0), has_unfinished=True)
    assert sum(books.cancel_latency.counts) == 1
    clock.now = 3.0
    books.committed(plan(1), result(1), has_unfinished=True)
    assert (sum(books.cancel_latency.counts), books.cancel_latency.total) == (2, 3.0)


def test_waiting_is_until_something_comes_out_or_the_request_leaves() -> None:
    clock = Clock()
    books = StepBooks(clock)
    for number in range(3):
        clock.now = float(number)
        books.added([request(number)])
    clock.now = 10.0
    assert books.oldest_waiting_age() == 10.0
    books.put_out([TokenOutput(request_id=0, token_ids=(5,))])
    assert books.oldest_waiting_age() == 9.0
    books.left(1)
    assert books.oldest_waiting_age() == 8.0
    books.left(2)
    assert books.oldest_waiting_age() is None
