from __future__ import annotations

import gc
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes import EOS_ID, FakeRunner, fake_client

from triolet import Engine, FinishReason, RequestOutputKind, SamplingParams
from triolet.errors import (
    EngineDeadError,
    EngineGenerateError,
    InvalidRequestError,
    JoinError,
    OverloadedError,
    PromptTooLongError,
    UsageError,
)
from triolet.frontend.preparation import LONG_PROMPT
from triolet.plan import StepPlan
from triolet.request import Request
from triolet.statistics import EngineState

pytestmark = pytest.mark.anyio


def make(byte_model: Path, runner: FakeRunner | None = None, **options: Any) -> Engine:
    return Engine(model=str(byte_model), client_factory=fake_client(runner or FakeRunner()), **options)


def delta(**fields: object) -> SamplingParams:
    return SamplingParams(output_kind=RequestOutputKind.DELTA, **fields)  # type: ignore[arg-type]


async def held(runner: FakeRunner) -> None:
    await anyio.to_thread.run_sync(runner.is_held.wait)


def spells(text: str) -> object:
    """A next_token that spells ``text`` after a prompt of three tokens, then ends."""
    data = text.encode()

    def next_token(request: Request, position: int) -> int:
        index = position - len(request.prompt_token_ids)
        return data[index] if index < len(data) else EOS_ID

    return next_token


class TestOutputs:
    async def test_cumulative_delta_and_final_only_tell_the_same(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            params = SamplingParams(max_tokens=5)
            cumulative = [output async for output in engine.generate("abc", params)]
            deltas = [output async for output in engine.generate("abc", delta(max_tokens=5))]
            kind = RequestOutputKind.FINAL_ONLY
            final = [output async for output in engine.generate("abc", params.replace(output_kind=kind))]
        assert cumulative[-1].outputs[0].text == "defgh"
        assert "".join(output.outputs[0].text for output in deltas) == "defgh"
        assert [output.outputs[0].text for output in final] == ["defgh"]
        assert final[0].outputs[0].finish_reason is FinishReason.LENGTH
        assert final[0].prompt_token_ids == tuple(b"abc")
        assert final[0].num_output_tokens == 5

    async def test_end_of_sequence_is_no_text(self, byte_model: Path) -> None:
        runner = FakeRunner(next_token=spells("hi"))  # type: ignore[arg-type]
        async with make(byte_model, runner) as engine:
            (*_, last) = [output async for output in engine.generate("abc")]
        completion = last.outputs[0]
        assert (completion.text, completion.finish_reason, completion.stop_reason) == (
            "hi",
            FinishReason.STOP,
            None,
        )
        assert completion.token_ids == [*b"hi", EOS_ID]

    async def test_stop_string_over_token_borders_is_cut_and_never_leaks(self, byte_model: Path) -> None:
        runner = FakeRunner()
        async with make(byte_model, runner) as engine:
            outputs = [
                output async for output in engine.generate("abc", delta(max_tokens=50, stop=("hij", "xyz")))
            ]
            assert "".join(output.outputs[0].text for output in outputs) == "defg"
            assert outputs[-1].outputs[0].stop_reason == "hij"
            assert engine.statistics().outcomes == {"stop": 1}
            async for _ in engine.generate("abc", SamplingParams(max_tokens=1)):
                pass
            assert engine.statistics().scheduler.num_free_blocks == runner.num_blocks
        assert runner.num_steps < 30, "this device is quick: some steps pass before the text is looked at"

    async def test_stop_token_id(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            params = SamplingParams(max_tokens=50, stop_token_ids=(ord("g"),))
            (*_, last) = [output async for output in engine.generate("abc", params)]
        assert (last.outputs[0].text, last.outputs[0].stop_reason) == ("def", ord("g"))

    async def test_whole_characters_only(self, byte_model: Path) -> None:
        runner = FakeRunner(next_token=spells("né€😀!"))  # type: ignore[arg-type]
        async with make(byte_model, runner) as engine:
            outputs = [output async for output in engine.generate("abc", delta(max_tokens=50))]
        texts = [output.outputs[0].text for output in outputs]
        assert "".join(texts) == "né€😀!"
        assert not any("\ufffd" in text for text in texts)

    async def test_logprobs_belong_to_tokens(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            (*_, last) = [output async for output in engine.generate("abc", SamplingParams(logprobs=0))]
        completion = last.outputs[0]
        assert completion.logprobs is not None
        assert [entry.token_ids[0] for entry in completion.logprobs] == completion.token_ids
        assert completion.cumulative_logprob == pytest.approx(-0.5 * len(completion.token_ids))

    async def test_chat_goes_through_the_template(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            messages = [{"role": "user", "content": "Hi"}]
            (*_, last) = [output async for output in engine.chat(messages, SamplingParams(max_tokens=1))]
        assert bytes(last.prompt_token_ids) == b"[user]Hi\n[assistant]"

    async def test_a_slow_consumer_finds_one_merged_output(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            stream = await engine.submit("abc", delta(max_tokens=10))
            await engine.wait_idle()
            outputs = [output async for output in stream]
        assert len(outputs) == 1
        assert outputs[0].outputs[0].text == "defghijklm"

    async def test_the_seed_used_comes_back(self, byte_model: Path) -> None:
        async with make(byte_model, seed=7) as engine:
            seeds = [
                (await anext(engine.generate("abc", SamplingParams(seed=seed)))).seed
                for seed in (None, None, 5)
            ]
        async with make(byte_model, seed=7) as engine:
            again = (await anext(engine.generate("abc"))).seed
        assert seeds[0] != seeds[1]
        assert seeds[2] == 5
        assert again == seeds[0]


class TestLeaving:
    @pytest.fixture
    async def runner(self) -> AsyncIterator[FakeRunner]:
        runner = FakeRunner()
        yield runner
        runner.gate.set()

    async def test_closing_the_generator_ends_the_request(self, byte_model: Path, runner: FakeRunner) -> None:
        async with make(byte_model, runner) as engine:
            generator = engine.generate("abc", delta(max_tokens=400))
            await anext(generator)
            await generator.aclose()
            assert engine.statistics().outcomes == {"abort": 1}

    async def test_cancelling_the_consumer_ends_the_request(
        self, byte_model: Path, runner: FakeRunner
    ) -> None:
        async with make(byte_model, runner) as engine:
            runner.gate.clear()
            with anyio.move_on_after(0.01):
                await anext(engine.generate("abc"))
            assert engine.statistics().outcomes == {"abort": 1}
            runner.gate.set()

    async def test_letting_the_stream_go_ends_the_request(self, byte_model: Path, runner: FakeRunner) -> None:
        async with make(byte_model, runner) as engine:
            runner.gate.clear()
            stream = await engine.submit("abc")
            del stream
            gc.collect()
            await anyio.wait_all_tasks_blocked()
            assert engine.statistics().outcomes == {"abort": 1}
            runner.gate.set()

    async def test_blocks_are_free_after_the_step_under_way(
        self, byte_model: Path, runner: FakeRunner
    ) -> None:
        async with make(byte_model, runner) as engine:
            runner.gate.clear()
            stream = await engine.submit("abc", delta(max_tokens=400))
            await held(runner)
            stream.abort()
            runner.gate.set()
            async for _ in engine.generate("abc", SamplingParams(max_tokens=1)):
                pass
            statistics = engine.statistics()
        assert statistics.scheduler.num_free_blocks == runner.num_blocks
        assert sum(statistics.ranks[0].cancel_latency.counts) == 1
        assert runner.num_steps == 2

    async def test_aborting_twice_or_after_the_end_does_nothing(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            async with await engine.submit("abc", SamplingParams(max_tokens=1)) as stream:
                async for _ in stream:
                    pass
                stream.abort()
                stream.abort()
            assert engine.statistics().outcomes == {"length": 1}


class TestScope:
    async def test_leaving_gives_streams_their_end_and_closes_the_runner(self, byte_model: Path) -> None:
        runner = FakeRunner()
        async with make(byte_model, runner) as engine:
            stream = await engine.submit("abc", delta(max_tokens=400))
            await anext(stream)
        (last,) = [output async for output in stream]
        assert last.outputs[0].finish_reason is FinishReason.ABORT
        assert runner.is_closed
        assert engine.state is EngineState.STOPPED

    async def test_an_exception_in_the_body_passes_through_unchanged(self, byte_model: Path) -> None:
        runner = FakeRunner()
        with pytest.raises(KeyError, match="mine"):
            async with make(byte_model, runner):
                raise KeyError("mine")
        assert runner.is_closed

    async def test_cancellation_in_the_body_gives_everything_back(self, byte_model: Path) -> None:
        runner, num_threads = FakeRunner(), threading.active_count()
        with anyio.CancelScope() as scope:
            async with make(byte_model, runner):
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert runner.is_closed
        assert not [t for t in threading.enumerate() if t.name == "triolet-device"]
        for thread in threading.enumerate():
            if thread.name == "background":  # warming up was given up: it ends by itself, soon
                thread.join(30)
        assert threading.active_count() <= num_threads + 1  # a worker thread of the loop may idle

    async def test_two_engines_at_once(self, byte_model: Path) -> None:
        async with make(byte_model) as first, make(byte_model) as second:
            for engine in (first, second):
                (*_, last) = [output async for output in engine.generate("abc", SamplingParams(max_tokens=2))]
                assert last.outputs[0].text == "de"

    async def test_signal_handlers_are_left_alone(self, byte_model: Path) -> None:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        before = [signal.getsignal(number) for number in numbers]
        async with make(byte_model):
            assert [signal.getsignal(number) for number in numbers] == before
        assert [signal.getsignal(number) for number in numbers] == before

    async def test_in_a_worker_thread(self, byte_model: Path, anyio_backend: str) -> None:
        async def use() -> str:
            async with make(byte_model) as engine:
                (*_, last) = [output async for output in engine.generate("abc", SamplingParams(max_tokens=2))]
                return last.outputs[0].text

        def run() -> str:
            return anyio.run(use, backend=anyio_backend)

        assert await anyio.to_thread.run_sync(run) == "de"

    async def test_an_engine_runs_once(self, byte_model: Path) -> None:
        engine = make(byte_model)
        async with engine:
            pass
        with pytest.raises(RuntimeError, match="make a new one"):
            async with engine:
                pass

    async def test_outside_its_scope_it_says_so(self, byte_model: Path) -> None:
        engine = make(byte_model)
        with pytest.raises(RuntimeError, match="async with"):
            await engine.submit("x")
        async with engine:
            pass
        with pytest.raises(OverloadedError, match="stopped, make a new one"):
            await engine.submit("x")

    async def test_options_of_another_kind(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            with pytest.raises(InvalidRequestError, match="options: must be RequestOptions"):
                await engine.submit("x", options={"timeout": 1})  # type: ignore[arg-type]

    async def test_another_thread_is_told_off(self, byte_model: Path, anyio_backend: str) -> None:
        async with make(byte_model) as engine:
            with pytest.raises(RuntimeError, match="another thread"):
                await anyio.to_thread.run_sync(lambda: anyio.run(engine.submit, "abc", backend=anyio_backend))

    async def test_a_model_that_is_not_there_is_a_clear_error(self) -> None:
        engine = Engine(model="/nowhere/model.gguf")
        with pytest.raises(UsageError):
            async with engine:
                pass
        assert engine.state is EngineState.DEAD
        assert engine.health().cause is not None

    async def test_abort_all_ends_every_stream(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            streams = [await engine.submit("abc", delta(max_tokens=400)) for _ in range(3)]
            engine.abort_all("test")
            for stream in streams:
                assert [output.is_finished async for output in stream] == [True]
            await engine.wait_idle()


class TestErrors:
    async def test_what_is_wrong_with_a_request_is_said_at_once(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            with pytest.raises(InvalidRequestError, match="empty"):
                await engine.submit("")
            with pytest.raises(InvalidRequestError, match="not in the vocabulary"):
                await engine.submit([5, 999])
            with pytest.raises(PromptTooLongError, match="600 tokens"):
                await engine.submit("a" * 600)
            with pytest.raises(PromptTooLongError, match="lower max_tokens to 509"):
                await engine.submit("abc", SamplingParams(max_tokens=600))
            with pytest.raises(PromptTooLongError):
                await engine.submit("a" * (LONG_PROMPT + 1))
            assert engine.statistics().outcomes == {"invalid": 5}

    @pytest.mark.parametrize("prompt", [None, 5, b"abc", {"a": 1}, ["x"]], ids=repr)
    async def test_a_prompt_of_another_kind(self, byte_model: Path, prompt: Any) -> None:
        async with make(byte_model) as engine:
            with pytest.raises(InvalidRequestError) as caught:
                await engine.submit(prompt)
        assert caught.value.param == "prompt"

    @pytest.mark.parametrize("messages", [None, 5, "Hi", {"role": "user"}, [], ["Hi"], [{}]], ids=repr)
    async def test_messages_of_another_kind(self, byte_model: Path, messages: Any) -> None:
        async with make(byte_model) as engine:
            with pytest.raises(InvalidRequestError) as caught:
                await engine.submit_chat(messages)
        assert caught.value.param == "messages"

    async def test_a_full_queue_refuses(self, byte_model: Path) -> None:
        runner = FakeRunner()
        options = {"max_num_seqs": 1, "max_num_queued_requests": 1}
        async with make(byte_model, runner, **options) as engine:
            runner.gate.clear()
            first = await engine.submit("abc")
            await held(runner)
            second = await engine.submit("abc")
            with pytest.raises(OverloadedError) as caught:
                await engine.submit("abc")
            assert caught.value.status == 429
            with pytest.raises(OverloadedError):
                engine.check_room()
            assert engine.statistics().outcomes == {"refused": 1}
            runner.gate.set()
            for stream in (first, second):
                assert [output async for output in stream][-1].is_finished

    async def test_a_failed_step_fails_its_requests_only(self, byte_model: Path) -> None:
        def fail(plan: StepPlan) -> None:
            if any(row.request.prompt_token_ids == tuple(b"bad") for row in plan.rows):
                raise RuntimeError("poison")

        async with make(byte_model, FakeRunner(fail=fail)) as engine:
            with pytest.raises(EngineGenerateError, match="poison"):
                await anext(engine.generate("bad"))
            (*_, last) = [output async for output in engine.generate("abc", SamplingParams(max_tokens=2))]
            assert last.outputs[0].text == "de"
            assert engine.statistics().outcomes == {"failed": 1, "length": 1}

    async def test_a_dead_engine_fails_streams_and_is_raised_at_the_scope(self, byte_model: Path) -> None:
        def fail(plan: StepPlan) -> None:
            raise RuntimeError("device lost")

        engine = make(byte_model, FakeRunner(fail=fail))

        async def use_until_it_dies() -> None:
            async with engine:
                for _ in range(5):
                    with pytest.raises((EngineGenerateError, EngineDeadError)):
                        await anext(engine.generate("abc"))
                await anyio.sleep_forever()

        with pytest.raises(EngineDeadError, match="device lost") as caught:
            await use_until_it_dies()
        assert repr(caught.value.__cause__) == "RuntimeError('device lost')"
        assert engine.state is EngineState.DEAD
        with pytest.raises(EngineDeadError, match="device lost"):
            await engine.submit("abc")

    async def test_machines_that_do_not_come_are_named_as_they_are(self, byte_model: Path) -> None:
        def open_nothing(*_: Any) -> Any:
            raise JoinError("no machine with rank 0")

        with pytest.raises(JoinError, match=r"^no machine with rank 0$"):
            await Engine(model=str(byte_model), client_factory=open_nothing).run()

    async def test_statistics_count_everything(self, byte_model: Path) -> None:
        async with make(byte_model) as engine:
            async for _ in engine.generate("abc", SamplingParams(max_tokens=4)):
                pass
            statistics = engine.statistics()
        assert (statistics.num_prompt_tokens, statistics.num_generated_tokens) == (3, 4)
        assert sum(statistics.time_to_first_token.counts) == 1
        assert sum(statistics.inter_token_latency.counts) == 3
        assert sum(statistics.request_latency.counts) == 1
        assert statistics.num_steps == 4
