"""Engine processes for real: served, killed, frozen, crashed and stopped, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.triolet.cluster.engines import BREAK, HANG, SEGFAULT, SLOW
from tests.triolet.cluster.front_ends import SECRET, TestFrontEnd
from tests.triolet.cluster.gone import is_gone

from triolet.args import EngineArgs
from triolet.cluster.messages import RankReport
from triolet.cluster.processes import ChildProcess, SubprocessStarter
from triolet.cluster.rank_supervisor import ENGINE_ROLE, RankSupervisor
from triolet.core.engine_core import load_core
from triolet.errors import ModelLoadError, UsageError
from triolet.models.source import local_files
from triolet.request import FinishReason, Request
from triolet.statistics import RankState

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

R, D = RankState.READY, RankState.DOWN
ONE_LOOP = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For what does not depend on the event loop, and takes seconds."""
FAKE_ROLE = "tests.triolet.cluster.engines:fake"


@pytest.fixture(autouse=True)
def no_file_left() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def request(request_id: int, *tokens: int, max_tokens: int = 4) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(*tokens, 100, 101), max_tokens=max_tokens, seed=0)


class NotingStarter(SubprocessStarter):
    """Notes the process ids, and what the processes write."""

    def __init__(self, backend: str) -> None:
        self.lines: list[str] = []
        self.pids: list[int] = []
        self.pid_of: dict[str, int] = {}
        super().__init__(backend=backend, on_line=self.lines.append)

    async def run(self, spec: Any, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> int:
        class Noting:
            def started(_, child: ChildProcess) -> None:
                self.pids.append(child.pid)
                self.pid_of[child.name] = child.pid
                task_status.started(child)

        return await super().run(spec, task_status=Noting())  # type: ignore[arg-type]


class Cluster:
    """A supervisor with its processes, and one front end."""

    def __init__(self, backend: str, num_ranks: int = 1, role: str = FAKE_ROLE, **options: Any) -> None:
        self.starter = NotingStarter(backend)
        self.front_end = TestFrontEnd()
        self.reports: list[RankReport] = []
        self.changed = anyio.Event()
        self.supervisor = RankSupervisor(
            EngineArgs(**options),
            range(num_ranks),
            self.starter,
            secret=SECRET,
            on_report=self._note,
            role=role,
        )
        self.supervisor.set_topology([self.front_end.address])

    def _note(self, report: RankReport) -> None:
        self.reports.append(report)
        self.changed.set()
        self.changed = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TestFrontEnd]:
        async with anyio.create_task_group() as task_group:
            await task_group.start(self.front_end.run)
            await task_group.start(self.supervisor.run)
            await self.front_end.wait_linked(len(self.supervisor.reports))
            yield self.front_end
            task_group.cancel_scope.cancel()

    async def wait_for(self, state: RankState, rank: int = 0, *, seconds: float = 60.0) -> RankReport:
        with anyio.fail_after(seconds):
            while (report := self.supervisor.reports[rank]).state is not state:
                await self.changed.wait()
        return report

    async def wait_back(self) -> None:
        """Until rank 0 serves again after it was down."""
        await self.front_end.wait_until(lambda: len(self.front_end.ready) == 2)
        await self.wait_for(R)


async def test_several_engines_serve_and_stop(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend, num_ranks=2)
    async with cluster.running() as front_end:
        for rank in (0, 1):
            front_end.add(request(rank), rank)
        await front_end.wait_ended(0, 1)
        assert [bytes(front_end.tokens(rank)) for rank in (0, 1)] == [b"cdef", b"cdef"]
        front_end.add(request(5, SLOW, max_tokens=10))
        await front_end.wait_until(lambda: len(front_end.tokens(5)) > 0)
        await cluster.supervisor.stop(10.0)
        assert front_end.reason(5) is FinishReason.LENGTH
    assert cluster.starter.lines == []


async def test_an_engine_that_is_killed_under_load_is_back_soon(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend, num_ranks=2)
    async with cluster.running() as front_end:
        front_end.add(request(1, SLOW, max_tokens=100))
        front_end.add(request(2, SLOW, max_tokens=30), 1)
        await front_end.wait_until(lambda: len(front_end.tokens(1)) > 0)
        os.kill(cluster.starter.pid_of["engine 0"], signal.SIGKILL)
        report = await cluster.wait_for(D)
        assert (report.cause or "").startswith("killed by SIGKILL, by another process")
        await front_end.wait_until(lambda: len(front_end.ready) == 3)
        front_end.add(request(3))
        await front_end.wait_ended(2, 3)
        assert front_end.reason(1) is None
        assert cluster.supervisor.reports[0].num_restarts == 1
        assert len(set(cluster.starter.pids)) == 3


async def test_a_crash_in_a_step_shows_where_it_was(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend)
    async with cluster.running() as front_end:
        front_end.add(request(1, SEGFAULT))
        report = await cluster.wait_for(D)
        assert report.cause is not None
        assert report.cause == "killed by SIGSEGV; it wrote: Fatal Python error: Segmentation fault"
        await cluster.wait_back()
    assert any("engines.py" in line and "__call__" in line for line in cluster.starter.lines)


@ONE_LOOP
async def test_an_engine_that_gives_up_says_why(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend)
    async with cluster.running() as front_end:
        for number in range(3):
            await front_end.wait_ended(*range(number))
            front_end.add(request(number, BREAK))
        report = await cluster.wait_for(D)
        assert report.cause == ("3 steps in a row failed, the last with RuntimeError('the device is gone')")
        await cluster.wait_back()


async def test_a_frozen_engine_is_replaced(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend, engine_stall_timeout=1.5)
    async with cluster.running():
        os.kill(cluster.starter.pids[0], signal.SIGSTOP)
        report = await cluster.wait_for(D)
        assert "nothing was heard of it for" in (report.cause or "")
        await cluster.wait_back()


@ONE_LOOP
async def test_a_step_that_hangs_is_seen_though_the_loop_turns(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend, engine_stall_timeout=1.5)
    async with cluster.running() as front_end:
        front_end.add(request(1, HANG))
        report = await cluster.wait_for(D)
        assert "its step did not end for" in (report.cause or "")
        await cluster.wait_back()
    assert any("engines.py" in line and "__call__" in line for line in cluster.starter.lines), "where it hung"


async def test_a_rank_is_replaced_while_another_serves(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend, num_ranks=2)
    async with cluster.running() as front_end:
        front_end.add(request(1, SLOW, max_tokens=20))
        await front_end.wait_until(lambda: len(front_end.tokens(1)) > 0)
        await cluster.supervisor.restart(0, 30.0)
        assert front_end.reason(1) is FinishReason.LENGTH
        await front_end.wait_until(lambda: len(front_end.ready) == 3)
        assert front_end.ready[-1].generation == 1


async def test_loading_is_no_hindrance_to_stopping(anyio_backend: str) -> None:
    cluster = Cluster(anyio_backend, role="tests.triolet.cluster.engines:hanging_load")
    async with anyio.create_task_group() as task_group:
        task_group.start_soon(cluster.supervisor.run)
        with anyio.fail_after(20):
            while cluster.supervisor.reports[0].phase != "loading for ever":
                await cluster.changed.wait()
        with anyio.fail_after(10):
            await cluster.supervisor.stop(30.0)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"model": "/nowhere/model.gguf"}, UsageError, "/nowhere/model.gguf"),
        ({"model": "EMPTY"}, ModelLoadError, "config.json"),
    ],
)
async def test_mistakes_of_the_user_are_the_same_errors_here(
    options: dict[str, Any], kind: type[Exception], message: str, anyio_backend: str, tmp_path: Path
) -> None:
    if options["model"] == "EMPTY":
        options = {"model": str(tmp_path)}
    cluster = Cluster(anyio_backend, role=ENGINE_ROLE, **options)
    with pytest.raises(kind, match=message):
        await cluster.supervisor.run()
    assert len(cluster.starter.pids) == 1
    assert not any("Traceback" in line for line in cluster.starter.lines)


@ONE_LOOP
async def test_a_real_model_computes_there_what_it_computes_here(
    byte_llama: Path, anyio_backend: str
) -> None:
    options: dict[str, Any] = {
        "model": str(byte_llama),
        "num_kv_blocks": 64,
        "num_threads": 1,
        "device": "cpu",
    }
    cluster = Cluster(anyio_backend, role=ENGINE_ROLE, **options)
    prompts = [tuple(range(50, 50 + length)) for length in (3, 20, 33)]
    async with cluster.running() as front_end:
        for number, prompt in enumerate(prompts):
            front_end.add(request(number, *prompt, max_tokens=20))
        await front_end.wait_ended(0, 1, 2)
        await cluster.supervisor.stop(5.0)
    core = load_core(EngineArgs(**options), local_files(byte_llama), lambda phase: None)
    expected: dict[int, list[int]] = {number: [] for number in range(3)}
    for number, prompt in enumerate(prompts):
        core.add(request(number, *prompt, max_tokens=20))
    while core.has_unfinished:
        for output in core.step():
            expected[output.request_id] += output.token_ids
    core.close()
    assert {number: front_end.tokens(number) for number in range(3)} == expected


LAUNCHER = """
import anyio, sys
from tests.integration.test_engine_process import Cluster
from triolet.statistics import RankState

async def main(backend, role):
    cluster = Cluster(backend, 2, role)
    async with anyio.create_task_group() as task_group:
        await task_group.start(cluster.front_end.run)
        task_group.start_soon(cluster.supervisor.run)
        is_awaited = (lambda report: report.phase == "loading for ever") if "hanging" in role else (
            lambda report: report.state is RankState.READY)
        while not all(map(is_awaited, cluster.supervisor.reports)):
            await cluster.changed.wait()
        print(*cluster.starter.pids, flush=True)
        await anyio.sleep_forever()

anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[1])
"""


@pytest.mark.parametrize("role", ["fake", "hanging_load"])
async def test_engines_are_gone_when_their_parent_is_killed(role: str, anyio_backend: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", LAUNCHER, anyio_backend, f"tests.triolet.cluster.engines:{role}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as launcher:  # noqa: ASYNC220
        assert launcher.stdout is not None
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        os.kill(pids[0], signal.SIGSTOP)  # not even this keeps it alive
        launcher.kill()
    assert len(pids) == 2
    assert [await is_gone(pid) for pid in pids] == [True, True]
