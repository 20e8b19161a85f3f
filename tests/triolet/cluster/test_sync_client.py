"""A caller without an event loop, over a client that runs on one: the same as the core in its own thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus
from tests.fakes import FakeRunner, fake_client, fake_core_factory
from tests.triolet.cluster.ranks import ask

from triolet import LLM, SamplingParams
from triolet.args import EngineArgs
from triolet.cluster.client import EngineClient
from triolet.cluster.sync_client import SyncClient, open_step_core
from triolet.core.control import PauseMode
from triolet.core.engine_core import EngineCore
from triolet.core.service import CoreService
from triolet.core.step_core import StepCore
from triolet.errors import EngineDeadError, ModelLoadError, OverloadedError, PromptTooLongError
from triolet.models.source import ModelFiles
from triolet.plan import StepPlan
from triolet.request import FinishReason, Request, TokenOutput

FILES: Any = None
ARGS = EngineArgs()


def ignore(phase: str) -> None:
    """Tell nobody."""


@contextmanager
def sync_client(runner: FakeRunner | None = None, make: Any = None) -> Iterator[SyncClient]:
    client = SyncClient(ARGS, FILES, ignore, client_factory=make or fake_client(runner or FakeRunner()))
    try:
        yield client
    finally:
        client.close()
        client.close()


def run(core: StepCore, *requests: Request) -> dict[int, list[int]]:
    """The tokens of requests that are run to their ends."""
    core.add(*requests)
    tokens: dict[int, list[int]] = {request.request_id: [] for request in requests}
    num_open = len(requests)
    while num_open:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
            num_open -= output.finish_reason is not None
    assert core.step() == []
    return tokens


def run_all(core: StepCore, num_requests: int) -> None:
    for number in range(num_requests):
        run(core, ask(number))


def test_both_kinds_of_core_are_one_to_their_callers() -> None:
    kinds: tuple[type[StepCore], ...] = (EngineCore, SyncClient)
    assert len(kinds) == 2


def test_requests_run_as_in_this_thread() -> None:
    requests = [ask(number, prompt=number + 1) for number in range(5)]
    runner = FakeRunner()
    with sync_client(runner) as client:
        assert run(client, *requests) == run(fake_core_factory(FakeRunner())(ARGS, FILES, ignore), *requests)
        assert (client.max_model_len, client.vocab_size) == (runner.max_model_len, runner.vocab_size)
    assert runner.is_closed


def test_an_llm_says_the_same_either_way(byte_model: Path) -> None:
    def remote(args: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]) -> SyncClient:
        return SyncClient(args, files, on_phase, client_factory=fake_client(FakeRunner()))

    said = []
    for factory in (fake_core_factory(FakeRunner()), remote):
        with LLM(model=str(byte_model), core_factory=factory) as llm:
            params = SamplingParams(n=2, max_tokens=6, seed=3, logprobs=1)
            outputs = llm.generate(["one", "two and more"], params, use_tqdm=False)
            said.append([[(one.text, one.token_ids) for one in output.outputs] for output in outputs])
            llm.sleep(1)
            assert llm.is_sleeping
            llm.wake_up()
            assert llm.reset_prefix_cache()
            assert not llm.is_paused
            with pytest.raises(PromptTooLongError):
                llm.generate("x" * 1000, use_tqdm=False)
    assert said[0] == said[1]


class PausedMidway(CoreService):
    """One whose second step waits until a pause is asked for: no request can end before."""

    def __init__(self) -> None:
        self._runner = FakeRunner(fail=self._hold)
        self._is_asked = threading.Event()
        super().__init__(partial(fake_core_factory(self._runner), ARGS, FILES))

    def _hold(self, plan: StepPlan) -> None:
        if self._runner.num_steps == 1:
            assert self._is_asked.wait(30), "nobody paused"

    async def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        self._is_asked.set()
        await super().pause(mode, clear_cache=clear_cache)


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_a_pause_is_complete_when_it_returns(mode: Any) -> None:
    with sync_client(make=lambda *_: PausedMidway()) as client:
        client.add(ask(1), ask(2))
        first = client.step()
        paused = client.pause(mode)
        assert (client.is_paused, client.is_quiet) == (True, True)
        ended = {output.request_id for output in first + paused if output.finish_reason is not None}
        assert ended == (set() if mode == "keep" else {1, 2})
        assert client.step() == []
        client.resume()
        while mode == "keep" and ended != {1, 2}:
            ended |= {output.request_id for output in client.step() if output.finish_reason is not None}
        assert run(client, ask(3)) != {}


class NotingClient(CoreService):
    """One that notes its end."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__(partial(fake_core_factory(FakeRunner()), ARGS, FILES))
        self._calls = calls

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        try:
            await super().run(task_status=task_status)
        finally:
            self._calls.append("ended")

    async def stop(self) -> None:
        await super().stop()
        self._calls.append("stopped")


def test_closing_stops_the_engines_before_it_drops_them() -> None:
    calls: list[str] = []
    with sync_client(make=lambda *_: NotingClient(calls)):
        pass
    assert calls == ["stopped", "ended"]


def test_an_engine_that_cannot_be_loaded_raises_and_leaves_nothing() -> None:
    def load(on_phase: Callable[[str], None]) -> EngineCore:
        raise ModelLoadError("no such file")

    with pytest.raises(ModelLoadError, match="no such file"), sync_client(make=lambda *_: CoreService(load)):
        pytest.fail("it has not been loaded")


def test_an_engine_that_dies_raises_its_cause_again_and_again() -> None:
    def fail(plan: StepPlan) -> None:
        raise RuntimeError("device lost")

    with sync_client(FakeRunner(fail=fail)) as client:
        with pytest.raises(EngineDeadError, match="device lost"):
            run_all(client, 5)
        client.reset()
        for call in (partial(client.add, ask(9)), partial(client.pause, "keep"), client.resume):
            with pytest.raises(EngineDeadError, match="device lost"):
                call()


class DyingClient(CoreService):
    """One whose rank dies under the first request, and is back after being asked twice."""

    num_refusals = 0

    async def get_outputs(self) -> list[TokenOutput]:
        outputs = await super().get_outputs()
        if self.num_refusals:
            return outputs
        self.num_refusals = 1
        self.abort(outputs[0].request_id)
        return [
            TokenOutput(
                request_id=outputs[0].request_id,
                finish_reason=FinishReason.ERROR,
                error="rank 0: killed by SIGKILL",
                is_engine_dead=True,
            )
        ]

    def add(self, *requests: Request) -> None:
        if 0 < self.num_refusals < 3:
            self.num_refusals += 1
            raise OverloadedError("restarting", is_serving=False)
        super().add(*requests)


def test_a_rank_that_dies_ends_the_call_and_is_waited_for_by_the_next() -> None:
    def make(args: EngineArgs, files: Any, on_phase: Any) -> EngineClient:
        return DyingClient(lambda on_phase: fake_core_factory(FakeRunner())(args, files, on_phase))

    with sync_client(make=make) as client:
        with pytest.raises(EngineDeadError, match="the engine died: rank 0: killed by SIGKILL"):
            run(client, ask(1))
        client.reset()
        assert len(run(client, ask(2))[2]) == 8


def test_a_full_queue_is_told_at_once() -> None:
    runner = FakeRunner()
    args = EngineArgs(max_num_seqs=1, max_num_queued_requests=1)
    client = SyncClient(args, FILES, ignore, client_factory=fake_client(runner))
    try:
        with pytest.raises(OverloadedError):
            client.add(ask(1), ask(2), ask(3))
        assert client.step() == []
    finally:
        client.close()


class TestInterrupts:
    """KeyboardInterrupt, raised at each line of this side in turn."""

    @pytest.mark.parametrize("what", ["add", "step", "abort", "pause"])
    def test_nothing_is_left_of_a_call_that_was_interrupted(self, what: str) -> None:
        calls: dict[str, Callable[[SyncClient], Any]] = {
            "add": lambda client: client.add(ask(2), ask(3)),
            "step": lambda client: client.step(),
            "abort": lambda client: client.abort(1),
            "pause": lambda client: client.pause("keep"),
        }
        runner = FakeRunner()
        made: list[CoreService] = []

        def make(args: EngineArgs, files: Any, on_phase: Any) -> EngineClient:
            made.append(CoreService(lambda on_phase: fake_core_factory(runner)(args, files, on_phase)))
            return made[0]

        with sync_client(make=make) as client:
            for line in range(200):
                client.add(ask(1))
                is_interrupted = interrupted_at(line, partial(calls[what], client))
                client.reset()
                client.resume()  # the pause is carried out, whoever waits for it
                assert len(run(client, ask(4))[4]) == 8
                (told,) = made[0].rank_statistics()
                assert (told.scheduler.num_running, told.scheduler.num_waiting) == (0, 0)
                if not is_interrupted:
                    return
        pytest.fail("the call has more lines than were tried")

    def test_an_interrupt_while_it_loads_leaves_nothing(self) -> None:
        def make(args: EngineArgs, files: Any, on_phase: Any) -> EngineClient:
            return Hanging(lambda on_phase: fake_core_factory(FakeRunner())(args, files, on_phase))

        class Hanging(CoreService):
            async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
                loading.set()
                await anyio.sleep_forever()

        loading = threading.Event()
        num_threads = threading.active_count()
        is_tried = False
        for line in range(0, 60, 3):
            is_tried |= interrupted_at(
                line, partial(SyncClient, ARGS, FILES, ignore, client_factory=make), is_stuck=loading
            )
            assert threading.active_count() == num_threads
        assert is_tried


def interrupted_at(line: int, call: Callable[[], Any], *, is_stuck: threading.Event | None = None) -> bool:
    """Whether a call got as far as to be interrupted at its ``line``-th line in the module under test."""
    num_lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal num_lines
        code = frame.f_code
        if not code.co_filename.endswith("cluster/sync_client.py") or code.co_name == "close":
            return None
        if event == "line":
            num_lines += 1
            is_last = is_stuck is not None and code.co_name == "_result"
            if num_lines > line or is_last:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_one_process_is_the_core_itself(byte_llama: Path) -> None:
    from triolet.frontend.loading import find_model

    args = EngineArgs(model=str(byte_llama), num_kv_blocks=16)
    core = open_step_core(args, find_model(args, ignore), ignore)
    try:
        assert isinstance(core, EngineCore)
    finally:
        core.close()
