from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_core_factory

from triolet import EngineArgs, FinishReason, LLMEngine, RequestOutput, SamplingParams
from triolet.core.engine_core import EngineCore
from triolet.errors import (
    ConflictError,
    EngineDeadError,
    InvalidRequestError,
    PromptTooLongError,
    UsageError,
)
from triolet.plan import StepPlan
from triolet.request import RequestOptions


def make(byte_model: Path, runner: FakeRunner, **options: Any) -> LLMEngine:
    return LLMEngine(model=str(byte_model), core_factory=fake_core_factory(runner), **options)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def engine(byte_model: Path, runner: FakeRunner) -> Iterator[LLMEngine]:
    with make(byte_model, runner) as engine:
        yield engine


def run(engine: LLMEngine) -> dict[str, list[RequestOutput]]:
    """Outputs by request, until none is left."""
    outputs: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def last_texts(outputs: dict[str, list[RequestOutput]]) -> dict[str, str]:
    return {name: parts[-1].outputs[0].text for name, parts in outputs.items()}


def check_empty(engine: LLMEngine) -> None:
    assert not engine.has_unfinished_requests()
    assert engine._states == {}
    assert engine.step() == []
    core = engine._core
    assert isinstance(core, EngineCore)
    core.check_integrity()
    assert core.statistics().num_free_blocks == core.statistics().num_blocks


class TestSteps:
    def test_requests_run_side_by_side_each_to_its_end(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=2))
        engine.add_request("two", [1, 2], SamplingParams(max_tokens=4))
        outputs = run(engine)
        assert last_texts(outputs) == {"one": "de", "two": "cdef"}
        assert [output.is_finished for output in outputs["two"]] == [False, False, False, True]
        check_empty(engine)

    def test_deltas(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=3, output_kind="delta"))  # type: ignore[arg-type]
        assert [output.outputs[0].text for output in run(engine)["one"]] == ["d", "e", "f"]

    def test_requests_may_come_while_others_run(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=5))
        engine.step()
        engine.add_request("two", "abc", SamplingParams(max_tokens=1))
        assert {output.request_id for output in engine.step()} == {"one", "two"}

    def test_a_stop_string_takes_the_request_out(self, engine: LLMEngine, runner: FakeRunner) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=100, stop=("fg",)))
        (last,) = run(engine)["one"][-1].outputs
        assert (last.text, last.stop_reason) == ("de", "fg")
        assert runner.num_steps == 4
        check_empty(engine)

    def test_chat(self, engine: LLMEngine) -> None:
        engine.add_chat_request("one", [{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=1))
        (output,) = run(engine)["one"]
        assert output.prompt == "[user]Hi\n[assistant]"

    def test_a_step_with_nothing_to_do_does_nothing(self, engine: LLMEngine, runner: FakeRunner) -> None:
        assert engine.step() == []
        assert runner.num_steps == 0

    def test_everything_is_done_in_the_calling_thread(self, engine: LLMEngine, runner: FakeRunner) -> None:
        engine.add_request("one", "abc")
        run(engine)
        assert runner.threads == {threading.get_ident()}


class TestIds:
    def test_an_id_in_use_is_refused_and_may_be_used_again_afterwards(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=2))
        with pytest.raises(InvalidRequestError, match="'one' is in use") as caught:
            engine.add_request("one", "ab")
        assert caught.value.param == "request_id"
        assert last_texts(run(engine)) == {"one": "de"}
        engine.add_request("one", "ab", SamplingParams(max_tokens=1))
        assert last_texts(run(engine)) == {"one": "c"}

    @pytest.mark.parametrize("request_id", [1, None, b"x", ["x"]])
    def test_an_id_is_a_string(self, engine: LLMEngine, request_id: Any) -> None:
        with pytest.raises(TypeError, match="request_id"):
            engine.add_request(request_id, "abc")
        check_empty(engine)

    @pytest.mark.parametrize("prompt", ["", [], [999], "a" * 512])
    def test_a_request_that_is_refused_leaves_nothing(self, engine: LLMEngine, prompt: Any) -> None:
        with pytest.raises(InvalidRequestError):
            engine.add_request("one", prompt)
        check_empty(engine)

    def test_nor_does_one_that_the_cache_cannot_hold(self, byte_model: Path) -> None:
        with make(byte_model, FakeRunner(num_blocks=4)) as engine:
            with pytest.raises(PromptTooLongError, match="KV blocks"):
                engine.add_request("one", "a" * 40)
            check_empty(engine)


class TestAbort:
    @pytest.mark.parametrize("num_steps", [0, 1, 3])
    def test_it_ends_with_what_there_is(self, engine: LLMEngine, num_steps: int) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=50))
        for _ in range(num_steps):
            engine.step()
        output = engine.abort_request("one")
        assert output is not None
        assert output.outputs[0].text == "def"[:num_steps]
        assert output.outputs[0].finish_reason is FinishReason.ABORT
        assert engine.abort_request("one") is None
        check_empty(engine)

    def test_an_unknown_id_is_nothing(self, engine: LLMEngine) -> None:
        assert engine.abort_request("one") is None

    def test_all(self, engine: LLMEngine) -> None:
        for name in ("one", "two", "three"):
            engine.add_request(name, "abc")
        engine.step()
        engine.abort_all()
        check_empty(engine)


class TestFailures:
    def test_a_failed_request_says_so(self, byte_model: Path) -> None:
        def fail(plan: StepPlan) -> None:
            raise RuntimeError("poison")

        with make(byte_model, FakeRunner(fail=fail)) as engine:
            engine.add_request("one", "abc")
            (output,) = run(engine)["one"]
            assert output.outputs[0].finish_reason is FinishReason.ERROR
            assert output.error == "the request failed in the engine: RuntimeError: poison"
            check_empty(engine)

    def test_an_interrupted_step_ends_all_requests(self, byte_model: Path) -> None:
        def interrupt(plan: StepPlan) -> None:
            held.fail = None
            raise KeyboardInterrupt

        held = FakeRunner(fail=interrupt)
        with make(byte_model, held) as engine:
            engine.add_request("one", "abc")
            with pytest.raises(KeyboardInterrupt):
                engine.step()
            check_empty(engine)
            engine.add_request("one", "abc", SamplingParams(max_tokens=2))
            assert last_texts(run(engine)) == {"one": "de"}

    def test_so_does_a_dead_device(self, byte_model: Path) -> None:
        def fail(plan: StepPlan) -> None:
            raise RuntimeError("device lost")

        with make(byte_model, FakeRunner(fail=fail), max_num_seqs=1) as engine:
            for name in ("one", "two", "three", "four"):
                engine.add_request(name, "abc")
            with pytest.raises(EngineDeadError, match="device lost"):
                run(engine)
            check_empty(engine)


class TestLife:
    def test_args_or_options(self, byte_model: Path, runner: FakeRunner) -> None:
        args = EngineArgs(model=str(byte_model), max_num_queued_requests=1)
        with LLMEngine(args, core_factory=fake_core_factory(runner)) as engine:
            for index in range(5):
                engine.add_request(str(index), "abc", SamplingParams(max_tokens=1))
            assert len(run(engine)) == 5
        assert args.max_num_queued_requests == 1
        with pytest.raises(TypeError, match="not both"):
            LLMEngine(args, seed=1)
        with pytest.raises(UsageError, match="--max-num-seqs"):
            LLMEngine(max_num_seqs=0)

    def test_close_ends_everything_and_may_be_called_again(
        self, engine: LLMEngine, runner: FakeRunner
    ) -> None:
        engine.add_request("one", "abc")
        engine.close()
        engine.close()
        assert runner.is_closed
        assert not engine.has_unfinished_requests()

    def test_use_after_close_is_a_clear_error(self, engine: LLMEngine) -> None:
        engine.close()
        with pytest.raises(RuntimeError, match="closed"):
            engine.add_request("one", "abc")
        with pytest.raises(RuntimeError, match="closed"):
            engine.step()
        assert engine.abort_request("one") is None
        engine.abort_all()

    def test_a_core_that_cannot_be_made_is_raised_as_it_is(self, byte_model: Path) -> None:
        def refuse(*_: object) -> Any:
            raise UsageError("too big", param="kv_cache_bytes")

        with pytest.raises(UsageError, match="too big"):
            LLMEngine(model=str(byte_model), core_factory=refuse)

    def test_the_queue_has_no_end(self, engine: LLMEngine) -> None:
        assert engine.args.max_num_queued_requests == sys.maxsize


class TestControl:
    def test_pause_aborts(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=50))
        engine.step()
        (output,) = engine.pause()
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("d", FinishReason.ABORT)
        assert engine.is_paused
        assert engine.step() == []
        engine.resume()
        check_empty(engine)

    def test_pause_waits_for_those_that_have_begun(self, byte_model: Path, runner: FakeRunner) -> None:
        with make(byte_model, runner, max_num_seqs=1) as engine:
            engine.add_request("one", "abc", SamplingParams(max_tokens=3))
            engine.add_request("two", "abc", SamplingParams(max_tokens=2))
            engine.step()
            outputs = engine.pause("wait")
            assert {output.request_id for output in outputs} == {"one"}
            assert outputs[-1].is_finished
            with pytest.raises(RuntimeError, match=r"paused; its requests go on after resume\(\)"):
                engine.step()
            engine.resume()
            assert last_texts(run(engine)) == {"two": "de"}
            check_empty(engine)

    @pytest.mark.parametrize("level", [0, 1, 2])
    def test_sleep_keeps_what_runs(self, engine: LLMEngine, runner: FakeRunner, level: int) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=5))
        engine.step()
        assert engine.sleep(level, "keep") == []
        assert engine.is_sleeping
        assert bool(runner.missing) == (level > 0)
        assert engine.sleep(2) == []
        assert runner.missing == {"weights", "kv_cache"}
        with pytest.raises(ConflictError, match="wake_up"):
            engine.resume()
        engine.wake_up(["kv_cache"])
        assert engine.is_sleeping
        engine.wake_up()
        assert not engine.is_sleeping
        assert last_texts(run(engine)) == {"one": "defgh"}
        check_empty(engine)

    def test_reset_prefix_cache(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=3))
        engine.step()
        assert not engine.reset_prefix_cache()
        assert engine.reset_prefix_cache(reset_running_requests=True)
        assert last_texts(run(engine)) == {"one": "def"}

    def test_deadlines_are_looked_at_in_each_step(self, engine: LLMEngine) -> None:
        engine.add_request("one", "abc", SamplingParams(max_tokens=50), options=RequestOptions(timeout=1e-9))
        engine.add_request("two", "abc", SamplingParams(max_tokens=2))
        outputs = run(engine)
        assert outputs["one"][-1].outputs[0].finish_reason is FinishReason.TIMEOUT
        assert last_texts(outputs) == {"one": "", "two": "de"}
        check_empty(engine)
