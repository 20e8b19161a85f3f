from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_core

from triolet.args import EngineArgs
from triolet.core.engine_core import EngineCore, build_core
from triolet.errors import ConflictError, EngineDeadError, OverloadedError
from triolet.plan import StepPlan
from triolet.request import FinishReason, LogitsAdjustments, Request, RequestOptions, TokenOutput


def request(request_id: int, *, prompt: int = 3, max_tokens: int = 4, **options: Any) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(range(request_id, request_id + prompt)),
        max_tokens=max_tokens,
        seed=0,
        options=RequestOptions(**options),
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


def test_a_request_that_always_fails_does_not_kill_however_often_it_comes() -> None:
    def fail(plan: StepPlan) -> None:
        if plan.rows:
            raise RuntimeError("poison")

    runner = FakeRunner(fail=fail)
    core = fake_core(runner)
    for number in range(10):
        core.add(request(number))
        assert [output.finish_reason for output in core.step()] == [FinishReason.ERROR]
    runner.fail = None
    core.add(request(99))
    assert run(core)[-1].finish_reason is FinishReason.LENGTH


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
    assert len(caplog.records) == len(references) == 6, "three steps, and the device tried after each"
    assert [reference() for reference in references] == [None] * 6


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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def clocked_core(clock: Clock, runner: FakeRunner, **options: Any) -> EngineCore:
    scheduler = fake_core(runner, EngineArgs(**options))._scheduler
    return EngineCore(scheduler, runner, clock=clock)


def texts(outputs: list[TokenOutput]) -> dict[int, str]:
    """What each request said, and in capitals how it ended."""
    found: dict[int, str] = {}
    for output in outputs:
        end = output.finish_reason.value.upper() if output.finish_reason else ""
        text = "".join(map(chr, output.token_ids)) + end
        found[output.request_id] = found.get(output.request_id, "") + text
    return found


def check_empty(core: EngineCore) -> None:
    core.check_integrity()
    assert not core.has_unfinished
    assert core.seconds_to_deadline() is None
    assert core.statistics().num_free_blocks == core.statistics().num_blocks


class TestDeadlines:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"queue_timeout": 1.5}, "defgLENGTH"),
            ({"first_token_timeout": 0.5}, "TIMEOUT"),
            ({"first_token_timeout": 1.5}, "defgLENGTH"),
            ({"timeout": 1.5}, "deTIMEOUT"),
            ({"timeout": 3.0}, "defTIMEOUT"),
        ],
    )
    def test_in_the_step_after_it_has_passed(self, options: dict[str, Any], said: str) -> None:
        clock = Clock()

        def tick(plan: StepPlan) -> None:
            clock.now += 1

        core = clocked_core(clock, FakeRunner(fail=tick))
        core.add(request(1, **options))
        core.add(request(2, prompt=9, max_tokens=6))
        if said == "TIMEOUT":
            clock.now += 1
        assert texts(run(core)) == {1: said, 2: "jklmnoLENGTH"}
        check_empty(core)

    def test_in_the_queue(self) -> None:
        clock = Clock()

        def tick(plan: StepPlan) -> None:
            clock.now += 1

        core = clocked_core(clock, FakeRunner(fail=tick), max_num_seqs=1)
        for number in range(3):
            core.add(request(number, queue_timeout=5))
        assert core.seconds_to_deadline() == 5
        assert texts(run(core)) == {0: "defgLENGTH", 1: "defgLENGTH", 2: "TIMEOUT"}
        check_empty(core)

    @pytest.mark.parametrize("num_in_flight", [1, 2])
    def test_while_steps_are_under_way(self, num_in_flight: int) -> None:
        clock = Clock()
        core = clocked_core(clock, FakeRunner())
        core.add(request(1, max_tokens=50, timeout=1))
        plans = [core.schedule() for _ in range(num_in_flight)]
        clock.now += 2
        assert texts(core.expire()) == {1: "TIMEOUT"}
        for plan in plans:
            assert plan is not None
            assert core.commit(plan, core.execute(plan)) == []
        check_empty(core)


class TestPause:
    def test_abort_ends_all_and_what_comes_waits(self) -> None:
        core = fake_core(FakeRunner(), EngineArgs(max_num_seqs=1))
        core.add(request(1))
        core.add(request(2))
        said = core.step()
        assert texts(said + core.pause("abort")) == {1: "dABORT", 2: "ABORT"}
        assert core.is_quiet
        core.add(request(3))
        assert core.step() == []
        core.resume()
        assert texts(run(core)) == {3: "defgLENGTH"}
        check_empty(core)

    def test_wait_lets_those_finish_that_have_begun(self) -> None:
        core = fake_core(FakeRunner(), EngineArgs(max_num_seqs=1))
        core.add(request(1))
        core.add(request(2))
        said = core.step()
        assert core.pause("wait") == []
        while not core.is_quiet:
            said += core.step()
        assert texts(said) == {1: "defgLENGTH"}
        assert core.step() == []
        core.resume()
        assert texts(run(core)) == {2: "defgLENGTH"}
        check_empty(core)

    def test_wait_waits_for_those_that_were_thrown_out(self) -> None:
        core = fake_core(FakeRunner(num_blocks=8, block_size=8))
        for number in (1, 2):
            core.add(request(number, prompt=12, max_tokens=40))
        said = core.step()
        core.add(request(4))
        core.pause("wait")
        while not core.is_quiet:
            said += core.step()
        assert core.statistics().num_preemptions > 0
        assert set(texts(said)) == {1, 2}
        assert all(text.endswith("LENGTH") for text in texts(said).values())
        assert core.statistics().num_waiting == 1
        core.resume()
        assert texts(run(core)) == {4: "defgLENGTH"}

    def test_keep_freezes_them(self) -> None:
        core = fake_core(FakeRunner())
        core.add(request(1))
        said = core.step()
        plan = core.schedule()
        assert core.pause("keep") == []
        assert not core.is_quiet
        assert plan is not None
        said += core.commit(plan, core.execute(plan))
        assert core.is_quiet
        assert core.step() == []
        core.resume()
        assert texts(said + run(core)) == {1: "defgLENGTH"}

    def test_a_reset_leaves_it_paused(self) -> None:
        core = fake_core(FakeRunner())
        core.pause("wait")
        core.reset()
        core.add(request(1))
        assert core.step() == []
        core.resume()
        assert texts(run(core)) == {1: "defgLENGTH"}


class TestSleep:
    @pytest.mark.parametrize("level", [1, 2])
    def test_memory_goes_and_comes_back(self, level: int) -> None:
        runner = FakeRunner()
        core = fake_core(runner)
        core.add(request(1, prompt=20, max_tokens=8))
        said = core.step()
        core.pause("keep")
        core.fall_asleep(level)
        core.release_memory()
        assert runner.missing == {"weights", "kv_cache"}
        assert core.statistics().num_free_blocks == core.statistics().num_blocks
        core.add(request(2))
        assert core.step() == []
        with pytest.raises(ConflictError, match="wake_up"):
            core.resume()
        for part in ("weights", "kv_cache"):
            assert core.is_sleeping
            parts = core.parts_to_wake([part])
            core.restore_memory(parts)
            core.wake_up(parts)
        assert not core.is_sleeping
        assert not core.is_paused
        assert texts(said + run(core)) == {1: "uvwxyzabLENGTH", 2: "defgLENGTH"}
        check_empty(core)

    @pytest.mark.parametrize("level", [0, 1, 2])
    def test_asleep_a_pause_waits_for_nothing_and_aborts_what_is_to_be_aborted(self, level: int) -> None:
        core = fake_core(FakeRunner())
        core.add(request(1))
        core.step()
        core.pause("keep")
        core.sleep(level)
        assert core.pause("wait") == []
        assert core.is_quiet
        assert core.step() == []
        assert texts(core.pause("abort")) == {1: "ABORT"}
        check_empty(core)

    def test_level_0_only_pauses(self) -> None:
        runner = FakeRunner()
        core = fake_core(runner)
        core.pause("keep")
        core.fall_asleep(0)
        assert core.is_sleeping
        core.wake_up(core.parts_to_wake(["weights"]))
        assert core.is_sleeping, "no weights were asleep"
        core.wake_up(core.parts_to_wake(["scheduling"]))
        assert (core.is_sleeping, core.is_paused, runner.missing) == (False, False, set())


def test_a_cached_prefix_is_forgotten_when_nobody_uses_it() -> None:
    core = fake_core(FakeRunner())
    core.add(request(1, prompt=40))
    core.step()
    assert not core.reset_prefix_cache()
    run(core)
    assert core.reset_prefix_cache()
    core.add(request(2, prompt=40))
    said = core.step()
    assert core.reset_prefix_cache(reset_running_requests=True)
    assert texts(said + run(core)) == {2: "opqrLENGTH"}
    assert core.statistics().num_prefix_hits == 0


def test_a_full_queue_says_when_to_come_back() -> None:
    clock = Clock()
    core = clocked_core(clock, FakeRunner(), max_num_seqs=1, max_num_queued_requests=3)
    for number in range(10):
        core.add(request(number, max_tokens=1))
        clock.now += 2
        core.step()
    for number in range(20, 24):
        core.add(request(number))
    with pytest.raises(OverloadedError) as caught:
        core.add(request(30))
    assert caught.value.retry_after == 8


class NotedConstraints:
    """Notes what it is told, of the little that the core says."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def prepare(self, grammar: str) -> None:
        self.told.append(grammar)

    def release(self, grammar: str) -> None:
        self.told.append(f"released {grammar}")

    def close(self) -> None:
        self.told.append("closed")


def test_grammars_are_prepared_as_requests_come_and_released_as_they_end() -> None:
    noted: Any = NotedConstraints()
    core = build_core(FakeRunner(), EngineArgs(), noted)
    core.add(request(0))
    core.add(replace(request(1), adjustments=LogitsAdjustments(grammar="start: x")))
    core.add(replace(request(2), adjustments=LogitsAdjustments(min_tokens=1)))
    core.schedule()
    assert noted.told == ["start: x"]
    core.abort(1)
    core.schedule()
    core.close()
    assert noted.told == ["start: x", "released start: x", "closed"]
