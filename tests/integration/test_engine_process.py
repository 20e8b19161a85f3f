"""Engine processes for real: served, killed, frozen, crashed and stopped, and nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from tests.triolet.cluster.engines import SLOW
from tests.triolet.cluster.front_ends import SECRET, TestFrontEnd

from triolet.args import EngineArgs
from triolet.cluster.messages import RankReport
from triolet.cluster.processes import ChildProcess, SubprocessStarter
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.request import FinishReason, Request
from triolet.statistics import RankState

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

R, D = RankState.READY, RankState.DOWN
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
        super().__init__(backend=backend, on_line=self.lines.append)

    async def run(self, spec: Any, *, task_status: Any = anyio.TASK_STATUS_IGNORED) -> int:
        class Noting:
            def started(_, child: ChildProcess) -> None:
                self.pids.append(child.pid)
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

    async def wait_for(self, state: RankState, rank: int = 0, *, seconds: float = 20.0) -> RankReport:
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
