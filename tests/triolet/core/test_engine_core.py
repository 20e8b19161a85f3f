from __future__ import annotations

import weakref

import pytest
from tests.fakes import FakeRunner, fake_core

from triolet.args import EngineArgs
from triolet.errors import EngineDeadError
from triolet.plan import StepPlan
from triolet.request import FinishReason, Request, TokenOutput


def request(request_id: int, *, prompt: int = 3, max_tokens: int = 4) -> Request:
    return Request(
        request_id=request_id, prompt_token_ids=tuple(range(prompt)), max_tokens=max_tokens, seed=0
    )


def run(core: object) -> list[TokenOutput]:
    outputs: list[TokenOutput] = []
    while core.has_unfinished:  # type: ignore[attr-defined]
        outputs += core.step()  # type: ignore[attr-defined]
    return outputs


def test_steps_run_requests_to_their_end() -> None:
    core = fake_core(FakeRunner())
    core.add(request(1))
    core.add(request(2, prompt=5, max_tokens=2))
    outputs = run(core)
    tokens = {i: [t for o in outputs if o.request_id == i for t in o.token_ids] for i in (1, 2)}
    assert tokens == {1: [ord(c) for c in "defg"], 2: [ord(c) for c in "fg"]}
    assert [o.finish_reason for o in outputs if o.finish_reason] == [FinishReason.LENGTH] * 2
    assert core.statistics().num_free_blocks == core.statistics().num_blocks
    core.check_integrity()


def test_nothing_to_do_is_no_step() -> None:
    runner = FakeRunner()
    assert fake_core(runner).step() == []
    assert runner.num_steps == 0


def test_a_failed_step_fails_its_requests_and_the_next_goes_on() -> None:
    def fail(plan: StepPlan) -> None:
        if any(row.request.request_id == 1 for row in plan.rows):
            raise RuntimeError("bad row")

    core = fake_core(FakeRunner(fail=fail))
    core.add(request(1))
    (failed,) = run(core)
    assert failed.finish_reason is FinishReason.ERROR
    assert failed.error == "RuntimeError: bad row"
    core.add(request(2))
    assert run(core)[-1].finish_reason is FinishReason.LENGTH
    assert core.statistics().num_free_blocks == core.statistics().num_blocks


def test_steps_that_keep_failing_are_the_death_of_the_engine() -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("device lost")

    core = fake_core(FakeRunner(fail=fail))
    for number in range(2):
        core.add(request(number))
        core.step()
    core.add(request(9))
    with pytest.raises(EngineDeadError, match="device lost"):
        core.step()


def test_an_error_keeps_nothing_of_the_step_alive(caplog: pytest.LogCaptureFixture) -> None:
    class Tensors:
        """What a step would hold."""

    references = []

    def fail(plan: StepPlan) -> None:
        tensors = Tensors()
        references.append(weakref.ref(tensors))
        raise RuntimeError("device lost")

    core = fake_core(FakeRunner(fail=fail), EngineArgs(max_num_seqs=1))
    for number in range(3):
        core.add(request(number))
    with pytest.raises(EngineDeadError) as caught:
        run(core)
    assert repr(caught.value.__cause__) == "RuntimeError('device lost')"
    assert len(caplog.records) == len(references) == 3
    assert [reference() for reference in references] == [None] * 3


def test_abort_takes_a_request_out() -> None:
    core = fake_core(FakeRunner())
    core.add(request(1))
    core.step()
    assert core.abort(1)
    assert not core.abort(1)
    assert not core.has_unfinished
    assert core.statistics().num_free_blocks == core.statistics().num_blocks


def test_close_closes_the_runner() -> None:
    runner = FakeRunner()
    fake_core(runner).close()
    assert runner.is_closed


def test_reset_drops_everything_even_a_plan_under_way() -> None:
    core = fake_core(FakeRunner())
    for number in range(3):
        core.add(request(number))
    assert core.schedule() is not None
    core.reset()
    core.check_integrity()
    assert not core.has_unfinished
    assert core.statistics().num_free_blocks == core.statistics().num_blocks
    core.add(request(0))
    assert len(run(core)) == 4
