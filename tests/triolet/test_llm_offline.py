"""What an LLM offers beside generate and chat: queues, priorities, beams, refusals, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import FakeRunner
from tests.triolet.test_llm import check_usable, is_interrupted, make, texts

from triolet import BeamSearchParams, FinishReason, SamplingParams
from triolet.errors import InvalidRequestError, PromptTooLongError, UsageError
from triolet.llm import LLM
from triolet.plan import StepPlan

THREE = SamplingParams(max_tokens=3)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def llm(byte_model: Path, runner: FakeRunner) -> Any:
    with make(byte_model, runner) as llm:
        yield llm


class TestQueue:
    def test_nothing_is_computed_before_it_is_waited_for(self, llm: LLM, runner: FakeRunner) -> None:
        ids = llm.enqueue(["abc", "ab"], THREE)
        ids += llm.enqueue_chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=1))
        assert runner.num_steps == 0
        outputs = llm.wait_for_completion()
        assert [output.request_id for output in outputs] == ids
        assert texts(outputs[:2]) == ["def", "cde"]
        assert outputs[2].prompt == "[user]Hi\n[assistant]"
        assert llm.wait_for_completion() == []
        check_usable(llm)

    def test_a_call_between_gives_its_own_results_and_no_others(self, llm: LLM) -> None:
        llm.enqueue("a", SamplingParams(max_tokens=1))
        llm.enqueue("ab", SamplingParams(max_tokens=9))
        assert texts(llm.generate(["abc"], THREE)) == ["def"]
        assert texts(llm.wait_for_completion()) == ["b", "cdefghijk"]
        check_usable(llm)

    def test_one_that_is_refused_takes_back_its_own_call_alone(self, llm: LLM, runner: FakeRunner) -> None:
        llm.enqueue("abc", THREE)
        with pytest.raises(InvalidRequestError):
            llm.enqueue(["ab", ""], THREE)
        with pytest.raises(PromptTooLongError):
            llm.generate(["ab", "a" * 600], THREE)
        assert runner.num_steps == 0
        assert texts(llm.wait_for_completion()) == ["def"]
        check_usable(llm)

    def test_an_interrupt_ends_all_that_is_queued(self, byte_model: Path) -> None:
        def interrupt(plan: StepPlan) -> None:
            failing.fail = None
            raise KeyboardInterrupt

        failing = FakeRunner(fail=interrupt)
        with make(byte_model, failing) as llm:
            llm.enqueue(["abc", "ab"], THREE)
            with pytest.raises(KeyboardInterrupt):
                llm.wait_for_completion()
            assert llm.wait_for_completion() == []
            check_usable(llm)

    def test_a_batch_may_be_queued_while_paused(self, llm: LLM, runner: FakeRunner) -> None:
        llm.sleep(level=0)
        llm.enqueue(["abc", "ab"], THREE)
        with pytest.raises(RuntimeError, match="paused"):
            llm.wait_for_completion()
        assert runner.num_steps == 0
        llm.wake_up(tags=["scheduling"])
        assert texts(llm.wait_for_completion()) == ["def", "cde"]

    def test_what_a_pause_ends_is_still_told(self, llm: LLM) -> None:
        llm.enqueue("abc", THREE)
        llm.pause("abort")
        llm.resume()
        (output,) = llm.wait_for_completion()
        assert output.outputs[0].finish_reason is FinishReason.ABORT


def queue_and_wait(llm: LLM) -> None:
    llm.enqueue(["abc", "ab"], THREE)
    llm.wait_for_completion(use_tqdm=False)


def search(llm: LLM) -> None:
    llm.beam_search("abc", BeamSearchParams(beam_width=2, max_tokens=3))


def continue_thrice(llm: LLM) -> None:
    llm.generate("abc", THREE.replace(n=3), use_tqdm=False)


@pytest.mark.parametrize("call", [queue_and_wait, search, continue_thrice])
def test_an_interrupt_at_any_moment_leaves_nothing_behind(llm: LLM, call: Callable[[LLM], None]) -> None:
    num_interrupts = 0
    for num_lines in range(1, 1400):
        num_interrupts += is_interrupted(llm, num_lines, call)
        llm.wait_for_completion(use_tqdm=False)  # an interrupt between the two calls leaves what was queued
        check_usable(llm)
    assert num_interrupts > 8, "it was meant to be interrupted"


class TestSeveral:
    def test_continuations_come_in_order_with_seeds_that_can_be_had_again(self, byte_llama: Path) -> None:
        with LLM(str(byte_llama), num_kv_blocks=64, num_threads=1) as llm:
            params = SamplingParams(n=4, seed=5, max_tokens=6, logprobs=0)
            outputs = llm.generate(["abc", "xyz"], params)
            alone = [
                llm.generate("abc", params.replace(n=1, seed=5 + index))[0].outputs[0] for index in range(4)
            ]
        first = outputs[0].outputs
        assert [item.index for item in first] == [0, 1, 2, 3]
        assert [item.token_ids for item in first] == [item.token_ids for item in alone]
        assert [item.logprobs for item in first] == [item.logprobs for item in alone]
        assert len({tuple(item.token_ids) for item in first}) == 4
        assert outputs[0].num_output_tokens == sum(len(item.token_ids) for item in first)

    def test_beams(self, llm: LLM) -> None:
        prompts: list[str | list[int]] = ["abc", [1, 2, 3]]
        outputs = llm.beam_search(prompts, BeamSearchParams(beam_width=2, max_tokens=3))
        assert texts(outputs) == ["def", "def"]
        for output in outputs:
            assert len(output.outputs) == 2
            scores = [item.cumulative_logprob or 0.0 for item in output.outputs]
            assert scores == sorted(scores, reverse=True)
        check_usable(llm)

    def test_beams_want_their_own_parameters(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError, match="BeamSearchParams"):
            llm.beam_search("abc", THREE)  # type: ignore[arg-type]


class TestPriority:
    def test_each_prompt_has_its_own(self, byte_model: Path) -> None:
        order: list[int] = []

        def note(plan: StepPlan) -> None:
            order.extend(row.request.options.priority for row in plan.rows)

        with make(byte_model, FakeRunner(fail=note), scheduling_policy="priority", max_num_seqs=1) as llm:
            llm.generate(["abc"] * 3, SamplingParams(max_tokens=1), priority=[3, 1, 2])
        assert order == [1, 2, 3]

    @pytest.mark.parametrize("priority", [[1], [1, 2, 3]])
    def test_as_many_as_prompts(self, llm: LLM, priority: list[int]) -> None:
        with pytest.raises(InvalidRequestError, match=rf"prompts \(2\) and priority \({len(priority)}\)"):
            llm.generate(["abc", "ab"], THREE, priority=priority)

    @pytest.mark.parametrize("priority", [5, "12", ["a", "b"]], ids=repr)
    def test_of_another_kind(self, llm: LLM, priority: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate(["abc", "ab"], THREE, priority=priority)
        assert caught.value.param == "priority"
        check_usable(llm)

    def test_it_is_refused_where_it_would_do_nothing(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequestError, match="--scheduling-policy priority"):
            llm.generate(["abc"], THREE, priority=[1])


@pytest.mark.parametrize("name", ["encode", "embed", "classify", "score", "reward"])
def test_what_only_pooling_models_do_is_refused_with_what_to_call(llm: LLM, name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"LLM\.{name}\(\) is only supported for pooling models.*LLM\.chat\(\)"
    ):
        getattr(llm, name)(["abc"], use_tqdm=False)


def test_options_of_other_engines(byte_model: Path, runner: FakeRunner) -> None:
    with pytest.raises(UsageError, match="data_parallel_size"):
        make(byte_model, runner, data_parallel_size=0)
    with pytest.warns(DeprecationWarning, match="swap_space"):
        make(byte_model, runner, swap_space=4, compilation_config=3).close()


def test_another_thread_meanwhile_is_told_what_to_do(byte_model: Path) -> None:
    held = FakeRunner()
    held.gate.clear()
    with make(byte_model, held) as llm:
        outputs: list[Any] = []
        thread = threading.Thread(target=lambda: outputs.extend(llm.generate("abc", THREE)))
        thread.start()
        assert held.is_held.wait(30)
        for call in (
            lambda: llm.generate("ab"),
            lambda: llm.enqueue("ab"),
            llm.wait_for_completion,
            llm.close,
        ):
            with pytest.raises(RuntimeError, match="make one for each thread, or use an Engine"):
                call()
        held.gate.set()
        thread.join()
        assert texts(outputs) == ["def"]
        assert texts(llm.generate("ab", THREE)) == ["cde"], "one after the other is well"


def test_its_tokeniser(llm: LLM) -> None:
    assert llm.get_tokenizer().encode("ab") == [*b"ab"]
