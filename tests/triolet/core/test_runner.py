"""The core on a device that computes beside the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fakes import FakeRunner

from triolet.args import EngineArgs
from triolet.core.engine_core import build_core
from triolet.core.runner import OverlappedRunner
from triolet.errors import EngineDeadError
from triolet.plan import StepPlan, StepResult
from triolet.request import FinishReason, Request, TokenOutput


class BesideRunner(FakeRunner):
    """Computes a step when its result is taken; notes what was asked of it, in order.

    ``refuse`` is called with each plan that is launched, and ``lose`` with each whose result is taken; both
    may raise.
    """

    max_steps_under_way = 2

    def __init__(
        self,
        refuse: Callable[[StepPlan], None] = lambda plan: None,
        lose: Callable[[StepPlan], None] = lambda plan: None,
    ) -> None:
        super().__init__(fail=refuse)
        self.refuse = refuse
        self.lose = lose
        self.calls: list[tuple[str, int]] = []

    def launch(self, plan: StepPlan) -> Callable[[], StepResult]:
        self.calls.append(("launch", plan.step_id))
        self.refuse(plan)

        def take() -> StepResult:
            self.calls.append(("take", plan.step_id))
            self.lose(plan)
            return self.execute(plan)

        return take


def request(request_id: int, max_tokens: int = 4) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(1, 2, 3), max_tokens=max_tokens, seed=0)


def run(runner: FakeRunner, *requests: Request) -> dict[int, list[TokenOutput]]:
    core = build_core(runner, EngineArgs())
    core.add(*requests)
    outputs: dict[int, list[TokenOutput]] = {}
    while core.has_unfinished:
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        core.check_integrity()
    return outputs


def text_of(outputs: list[TokenOutput]) -> str:
    return "".join(chr(token) for output in outputs for token in output.token_ids)


def test_a_plain_runner_has_one_step_under_way() -> None:
    assert not isinstance(FakeRunner(), OverlappedRunner)
    assert build_core(FakeRunner(), EngineArgs()).max_steps_under_way == 1


def test_the_next_step_is_launched_before_the_result_of_the_last_is_taken() -> None:
    runner = BesideRunner()
    outputs = run(runner, request(1))
    assert text_of(outputs[1]) == "defg"
    order = [("launch", 0), ("launch", 1), ("take", 0), ("launch", 2), ("take", 1), ("launch", 3)]
    assert runner.calls[: len(order)] == order
    assert [step for kind, step in runner.calls if kind == "take"] == [0, 1, 2, 3]


def test_a_token_too_many_is_not_shown() -> None:
    runner = BesideRunner()
    stopped = Request(
        request_id=1, prompt_token_ids=(1, 2, 3), max_tokens=9, seed=0, stop_token_ids=frozenset({ord("e")})
    )
    outputs = run(runner, stopped)
    assert text_of(outputs[1]) == "de"
    assert outputs[1][-1].finish_reason is FinishReason.STOP
    assert len(runner.calls) == 2 * 3


def test_a_launch_that_fails_once_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = [MemoryError("full")]

    def refuse(plan: StepPlan) -> None:
        if plan.step_id == 1 and failures:
            raise failures.pop()

    outputs = run(BesideRunner(refuse), request(1), request(2))
    assert {text_of(parts) for parts in outputs.values()} == {"defg"}
    assert "step 1 could not be launched and is run again: out of memory" in caplog.text


def test_a_launch_that_fails_for_one_row_is_its_failure_alone() -> None:
    def refuse(plan: StepPlan) -> None:
        if plan.step_id >= 1 and any(row.request.request_id == 2 for row in plan.rows):
            raise RuntimeError("bad row")

    outputs = run(BesideRunner(refuse), request(1), request(2), request(3))
    assert text_of(outputs[1]) == text_of(outputs[3]) == "defg"
    assert text_of(outputs[2]) == "d"
    assert outputs[2][-1].error == "RuntimeError: bad row"


def test_a_result_that_does_not_come_is_the_end_of_the_engine() -> None:
    def lose(plan: StepPlan) -> None:
        if plan.step_id == 1:
            raise RuntimeError("an illegal memory access was encountered")

    with pytest.raises(
        EngineDeadError, match="step 1 was lost by the device: RuntimeError: an illegal memory"
    ):
        run(BesideRunner(lose=lose), request(1))


def test_reset_waits_for_what_is_under_way() -> None:
    runner = BesideRunner()
    core = build_core(runner, EngineArgs())
    core.add(request(1))
    core.step()
    core.reset()
    assert [kind for kind, _ in runner.calls].count("take") == 2
    assert not core.has_unfinished
    core.add(request(2))
    while core.has_unfinished:
        core.step()


def test_the_time_of_a_step_begins_when_the_one_before_has_ended() -> None:
    now = [0.0]
    runner = BesideRunner(lose=lambda plan: now.__setitem__(0, now[0] + 2.0))
    core = build_core(runner, EngineArgs())
    core._clock = lambda: now[0]
    core.add(request(1, 9))
    plans = [core.schedule(), core.schedule()]
    waits = [core.launch(plan) for plan in plans if plan is not None]
    assert [wait().seconds for wait in waits] == [2.0, 2.0]
