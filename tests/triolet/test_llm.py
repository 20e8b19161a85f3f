from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.fakes import FakeRunner, fake_core_factory

from triolet import LLM, EngineArgs, FinishReason, SamplingParams
from triolet.core.engine_core import EngineCore
from triolet.errors import EngineDeadError, InvalidRequestError, ModelLoadError, PromptTooLongError
from triolet.plan import StepPlan
from triolet.request import RequestOutput


def make(byte_model: Path, runner: FakeRunner, **options: Any) -> LLM:
    return LLM(str(byte_model), core_factory=fake_core_factory(runner), **options)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def llm(byte_model: Path, runner: FakeRunner) -> Iterator[LLM]:
    with make(byte_model, runner) as llm:
        yield llm


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def check_usable(llm: LLM) -> None:
    """Nothing is left of what was before, and the next call works."""
    assert not llm._engine.has_unfinished_requests()
    core = llm._engine._core
    assert isinstance(core, EngineCore)
    core.check_integrity()
    assert not core.has_unfinished
    assert core.statistics().num_free_blocks == core.statistics().num_blocks
    assert texts(llm.generate(["abc", "ab"], SamplingParams(max_tokens=3))) == ["def", "cde"]


class TestResults:
    def test_one_prompt_gives_one_result(self, llm: LLM) -> None:
        (output,) = llm.generate("abc", SamplingParams(max_tokens=3))
        assert output.outputs[0].text == "def"
        assert (output.is_finished, output.prompt, output.prompt_token_ids) == (True, "abc", tuple(b"abc"))

    def test_results_come_in_the_order_of_the_prompts(self, llm: LLM) -> None:
        prompts = ["a" * (1 + i * 7 % 20) for i in range(100)]
        params = [SamplingParams(max_tokens=1 + i * 5 % 9) for i in range(100)]
        outputs = llm.generate(prompts, params)
        assert [output.prompt for output in outputs] == prompts
        assert [len(output.outputs[0].token_ids) for output in outputs] == [p.max_tokens for p in params]

    @pytest.mark.parametrize(
        ("prompts", "expected"),
        [([1, 2, 3], ["def"]), ([[1, 2, 3], "ab"], ["def", "cde"]), ((7,), ["bcd"]), ([], []), ((), [])],
    )
    def test_token_ids_and_text_may_be_mixed(self, llm: LLM, prompts: Any, expected: list[str]) -> None:
        assert texts(llm.generate(prompts, SamplingParams(max_tokens=3))) == expected

    def test_params_may_be_left_out(self, llm: LLM) -> None:
        assert texts(llm.generate("abc")) == ["defghijklmnopqrs"]

    def test_the_callers_params_stay_as_they_were(self, llm: LLM) -> None:
        params = [SamplingParams(max_tokens=2, output_kind="delta"), SamplingParams(stop=("f",))]  # type: ignore[arg-type]
        before = list(map(repr, params))
        outputs = llm.generate(["abc", "abc"], params)
        assert texts(outputs) == ["de", "de"]
        assert outputs[1].outputs[0].stop_reason == "f"
        assert list(map(repr, params)) == before

    def test_more_prompts_than_the_queue_of_a_server_holds(self, byte_model: Path) -> None:
        with make(byte_model, FakeRunner(), max_num_queued_requests=2, max_num_seqs=4) as llm:
            assert len(llm.generate(["abc"] * 50, SamplingParams(max_tokens=2))) == 50

    def test_seeds_come_back_and_can_be_had_again(self, byte_model: Path) -> None:
        with (
            make(byte_model, FakeRunner(), seed=3) as first,
            make(byte_model, FakeRunner(), seed=3) as second,
        ):
            seeds = [[output.seed for output in llm.generate(["abc", "abc"])] for llm in (first, second)]
        assert seeds[0] == seeds[1]
        assert seeds[0][0] != seeds[0][1]


class TestChat:
    HI = ({"role": "user", "content": "Hi"},)

    def test_one_conversation(self, llm: LLM) -> None:
        (output,) = llm.chat(self.HI, SamplingParams(max_tokens=1))
        assert output.prompt == "[user]Hi\n[assistant]"
        assert bytes(output.prompt_token_ids) == b"[user]Hi\n[assistant]"

    def test_several(self, llm: LLM) -> None:
        ho = [{"role": "user", "content": "Ho"}]
        outputs = llm.chat([list(self.HI), ho], SamplingParams(max_tokens=1))
        assert [output.prompt for output in outputs] == ["[user]Hi\n[assistant]", "[user]Ho\n[assistant]"]

    def test_none_at_all(self, llm: LLM) -> None:
        assert llm.chat([]) == []

    def test_the_beginning_of_the_answer_may_be_left_to_the_caller(self, llm: LLM) -> None:
        (output,) = llm.chat(self.HI, SamplingParams(max_tokens=1), add_generation_prompt=False)
        assert output.prompt == "[user]Hi\n"

    @pytest.mark.parametrize(
        "messages", [None, 5, "Hi", [5], ["Hi"], [[]], [{"content": "Hi"}], [[{}]]], ids=repr
    )
    def test_what_is_no_conversation_is_refused(self, llm: LLM, messages: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            llm.chat(messages)
        assert caught.value.param == "messages"


class TestAllOrNothing:
    @pytest.mark.parametrize("bad", ["", [], [999], ["x"], None, 5, b"x", "a" * 600, [True]], ids=repr)
    def test_a_bad_prompt_among_good_ones(self, llm: LLM, runner: FakeRunner, bad: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate(["abc", "abc", bad, "abc"])
        assert caught.value.param == "prompt"
        assert runner.num_steps == 0
        check_usable(llm)

    @pytest.mark.parametrize("prompts", [None, 5, 1.5, b"abc", {"a": 1}, object], ids=repr)
    def test_what_is_no_prompt_at_all(self, llm: LLM, prompts: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate(prompts)
        assert caught.value.param == "prompt"

    def test_one_that_does_not_fit(self, llm: LLM, runner: FakeRunner) -> None:
        params = [SamplingParams(max_tokens=5), SamplingParams(max_tokens=512)]
        with pytest.raises(PromptTooLongError):
            llm.generate(["abc", "abc"], params)
        assert runner.num_steps == 0
        check_usable(llm)

    @pytest.mark.parametrize("num_params", [0, 1, 3])
    def test_as_many_params_as_prompts(self, llm: LLM, runner: FakeRunner, num_params: int) -> None:
        with pytest.raises(InvalidRequestError, match=rf"prompts \(2\) and sampling_params \({num_params}\)"):
            llm.generate(["abc", "abc"], [SamplingParams()] * num_params)
        assert runner.num_steps == 0

    @pytest.mark.parametrize("params", [5, "x", {"temperature": 0}, [None, None], [{}, {}]], ids=repr)
    def test_params_of_another_kind(self, llm: LLM, runner: FakeRunner, params: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate(["abc", "abc"], params)
        assert caught.value.param == "sampling_params"
        check_usable(llm)


class TestFailures:
    def test_a_request_that_fails_says_so_and_the_others_finish(
        self, byte_model: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(plan: StepPlan) -> None:
            if any(row.request.prompt_token_ids == tuple(b"bad") for row in plan.rows):
                raise RuntimeError("poison")

        with make(byte_model, FakeRunner(fail=fail), max_num_seqs=1) as llm:
            caplog.set_level("WARNING", "triolet.engine")
            caplog.clear()
            prompts = ["abc", "bad", "ab", "bad"]
            first, bad, last, _ = llm.generate(prompts, SamplingParams(max_tokens=3))
            (told,) = [one.getMessage() for one in caplog.records if one.name == "triolet.engine"]
            assert told.startswith("2 of 4 requests failed")
            assert told.endswith("the first: the request failed in the engine: RuntimeError: poison")
            assert texts([first, last]) == ["def", "cde"]
            assert bad.outputs[0].finish_reason is FinishReason.ERROR
            assert bad.error == "the request failed in the engine: RuntimeError: poison"
            assert first.error is None
            check_usable(llm)

    def test_a_dead_device_is_raised(self, byte_model: Path) -> None:
        def fail(plan: StepPlan) -> None:
            raise RuntimeError("device lost")

        with make(byte_model, FakeRunner(fail=fail), max_num_seqs=1) as llm:
            with pytest.raises(EngineDeadError, match="device lost"):
                llm.generate(["abc"] * 5)
            assert not llm._engine.has_unfinished_requests()

    @pytest.mark.parametrize("num_steps", [0, 1, 3])
    def test_an_interrupt_during_a_step_leaves_nothing_behind(self, byte_model: Path, num_steps: int) -> None:
        def interrupt(plan: StepPlan) -> None:
            if held.num_steps == num_steps:
                held.fail = None
                raise KeyboardInterrupt

        held = FakeRunner(fail=interrupt)
        with make(byte_model, held, max_num_seqs=2) as llm:
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["abc"] * 5)
            check_usable(llm)

    def test_nor_does_one_at_any_other_moment(self, llm: LLM) -> None:
        num_interrupts = 0
        for num_lines in range(1, 1400):
            num_interrupts += is_interrupted(llm, num_lines)
            check_usable(llm)
        assert num_interrupts > 20, "it was meant to be interrupted"


def generate_two(llm: LLM) -> None:
    llm.generate(["abc", "ab"], SamplingParams(max_tokens=3, stop=("xyz",)), use_tqdm=False)


def is_interrupted(llm: LLM, num_lines: int, call: Callable[[LLM], object] = generate_two) -> bool:
    """Call it, with a KeyboardInterrupt before the given one of the lines run; → whether it came."""
    countdown = num_lines

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal countdown
        if "/triolet/" not in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
            return None
        countdown -= event == "line"
        if countdown == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(llm)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class TestProgressBar:
    def test_nothing_is_printed_where_there_is_no_terminal(
        self, llm: LLM, capfd: pytest.CaptureFixture[str]
    ) -> None:
        llm.generate("abc")
        assert capfd.readouterr() == ("", "")

    def test_on_a_terminal_it_goes_to_the_standard_error(
        self, llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        llm.generate(["abc", "ab"])
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Processed prompts" in captured.err
        assert "2/2" in captured.err

    def test_unless_it_is_not_wanted(
        self, llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        llm.generate("abc", use_tqdm=False)
        assert capsys.readouterr() == ("", "")

    def test_it_leaves_no_thread(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        before = threading.enumerate()
        llm.generate("abc")
        assert threading.enumerate() == before


class TestLife:
    def test_everything_runs_in_the_calling_thread(self, llm: LLM, runner: FakeRunner) -> None:
        llm.generate("abc")
        assert runner.threads == {threading.get_ident()}

    def test_leaving_the_scope_closes_it_and_closing_again_does_nothing(
        self, byte_model: Path, runner: FakeRunner
    ) -> None:
        with make(byte_model, runner) as llm:
            assert not runner.is_closed
        assert runner.is_closed
        llm.close()

    def test_an_exception_in_the_scope_passes_through(self, byte_model: Path, runner: FakeRunner) -> None:
        with pytest.raises(KeyError), make(byte_model, runner):
            raise KeyError
        assert runner.is_closed

    def test_use_after_close_is_a_clear_error(self, llm: LLM) -> None:
        llm.close()
        with pytest.raises(RuntimeError, match="closed"):
            llm.generate("abc")
        with pytest.raises(RuntimeError, match="closed"):
            llm.chat(TestChat.HI)

    def test_the_runner_is_let_go_of(self, byte_model: Path) -> None:
        runners = [FakeRunner()]
        llm = LLM(str(byte_model), core_factory=fake_core_factory(runners[0]))
        llm.generate("abc")
        reference = weakref.ref(runners.pop())
        llm.close()
        gc.collect()
        assert reference() is None

    def test_options_come_as_args_or_as_keywords(self, byte_model: Path, runner: FakeRunner) -> None:
        args = EngineArgs(model=str(byte_model))
        with LLM(args=args, core_factory=fake_core_factory(runner)) as llm:
            assert texts(llm.generate("abc", SamplingParams(max_tokens=1))) == ["d"]
        with pytest.raises(TypeError, match="not both"):
            LLM("model", args=args)

    def test_a_model_that_cannot_be_loaded(self, byte_model: Path) -> None:
        with pytest.raises(ModelLoadError, match=r"config\.json: hidden_size is missing"):
            LLM(str(byte_model))


class TestRealModel:
    def test_alone_or_in_company_the_tokens_are_the_same(self, byte_llama: Path) -> None:
        prompts: list[str | list[int]] = ["one", "two, three", "four " * 10, [5, 6, 7]]
        params = [
            SamplingParams(max_tokens=12, temperature=0.0),
            SamplingParams(max_tokens=9, seed=5),
            SamplingParams(max_tokens=20, seed=6, top_p=0.9, logprobs=2),
            SamplingParams(max_tokens=5, seed=7, top_k=5),
        ]
        with LLM(str(byte_llama), num_kv_blocks=64, num_threads=1, kernels="reference") as llm:
            together = llm.generate(prompts, params)
            alone = [llm.generate(prompt, one)[0] for prompt, one in zip(prompts, params, strict=True)]
        for left, right in zip(together, alone, strict=True):
            assert left.outputs[0].token_ids == right.outputs[0].token_ids
            assert left.outputs[0].text == right.outputs[0].text
            assert left.prompt == right.prompt
        logprobs = together[2].outputs[0].logprobs
        assert logprobs is not None
        assert [entry.token_ids[0] for entry in logprobs] == together[2].outputs[0].token_ids

    def test_memory_is_back_after_close(self, byte_llama: Path) -> None:
        llm = LLM(str(byte_llama), num_kv_blocks=64, num_threads=1, kernels="reference")
        core = llm._engine._core
        assert isinstance(core, EngineCore)
        runner = weakref.ref(core._runner)
        del core
        llm.generate("abc", SamplingParams(max_tokens=4))
        llm.close()
        gc.collect()
        assert runner() is None


class TestControl:
    def test_a_paused_model_does_not_hang_but_says_so(self, llm: LLM) -> None:
        assert llm.pause() == []
        assert llm.is_paused
        with pytest.raises(RuntimeError, match=r"resume\(\) or wake_up\(\)"):
            llm.generate("abc", use_tqdm=False)
        llm.resume()
        check_usable(llm)

    def test_sleep(self, llm: LLM, runner: FakeRunner) -> None:
        llm.sleep()
        assert llm.is_sleeping
        assert runner.missing == {"weights", "kv_cache"}
        llm.wake_up()
        assert not llm.is_sleeping
        assert llm.reset_prefix_cache()
        check_usable(llm)
