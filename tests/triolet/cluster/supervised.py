"""Supervised engines whose processes are tasks: what the tests of a supervisor and of its processes share."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, TaskGroup
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter
from tests.triolet.cluster.fake_rank import FakeRankClient
from trio.testing import MockClock

from triolet.args import EngineArgs
from triolet.cluster.link import Link
from triolet.cluster.messages import RankReport, Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.rank_server import serve_rank
from triolet.cluster.rank_supervisor import RankSupervisor
from triolet.cluster.resources import RankResources
from triolet.statistics import RankState

__all__ = ["LOAD_SECONDS", "LONG", "STALL_SECONDS", "Cluster", "anyio_backend", "is_killed", "nothing"]

STALL_SECONDS = 20.0
LOAD_SECONDS = 60.0


@pytest.fixture(params=["virtual", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Trio on a virtual clock, and asyncio on the real one for what takes a few seconds at most."""
    return "asyncio" if request.param == "asyncio" else ("trio", {"clock": MockClock(autojump_threshold=0)})


LONG = pytest.mark.parametrize("anyio_backend", ["virtual"], indirect=True)


def nothing() -> None:
    pass


class Cluster:
    """A supervisor, its processes, the engines in them and what was reported of them."""

    def __init__(self, num_ranks: int = 1, *, budget: int = 2, load_seconds: float = 0.2) -> None:
        self.load_seconds = load_seconds
        self.fail: Callable[[], None] = nothing
        """Called when an engine has loaded and in each of its steps; may raise."""
        self.starts: list[Start] = []
        self.engines: list[FakeRankClient] = []
        self.reports: list[tuple[float, RankReport]] = []
        self.changed = anyio.Event()
        self.starter = FakeStarter(self._role)
        self.supervisor = RankSupervisor(
            EngineArgs(
                engine_stall_timeout=STALL_SECONDS,
                engine_load_timeout=LOAD_SECONDS,
                engine_restart_budget=budget,
            ),
            range(num_ranks),
            self.starter,
            secret=b"secret",
            on_report=self._note,
            resources=(RankResources(2, 1, {}),) * num_ranks,
        )

    def _note(self, report: RankReport) -> None:
        self.reports.append((anyio.current_time(), report))
        self.changed.set()
        self.changed = anyio.Event()

    async def _role(self, child: FakeChild, stream: ByteStream) -> int:
        async def serve(link: Link) -> None:
            await serve_rank(link, None, self._engine)  # type: ignore[arg-type]

        return await serve_parent(stream, serve)

    def _engine(self, start: Start, on_phase: Callable[[str], None]) -> FakeRankClient:
        self.starts.append(start)
        engine = FakeRankClient(
            rank=start.rank, load_seconds=self.load_seconds, on_phase=on_phase, fail=lambda: self.fail()
        )
        self.engines.append(engine)
        return engine

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TaskGroup]:
        async with anyio.create_task_group() as task_group:
            await task_group.start(self.supervisor.run)
            yield task_group
            task_group.cancel_scope.cancel()

    def child(self, rank: int = 0) -> FakeChild:
        """The rank's process now."""
        return [child for child in self.starter.children if child.name == f"engine {rank}"][-1]

    def engine(self, rank: int = 0) -> FakeRankClient:
        """The engine in it."""
        return [
            engine for engine, start in zip(self.engines, self.starts, strict=True) if start.rank == rank
        ][-1]

    def states(self, rank: int = 0) -> list[RankState]:
        """Those it has been in, one after the other."""
        states: list[RankState] = []
        for _, report in self.reports:
            if report.rank == rank and report.state not in states[-1:]:
                states.append(report.state)
        return states

    def seconds_between(self, one: RankState, other: RankState, rank: int = 0) -> float:
        """From the last report of one state to the last of the other."""
        last = {report.state: now for now, report in self.reports if report.rank == rank}
        return last[other] - last[one]

    async def wait_for(self, state: RankState, rank: int = 0) -> float:
        """When it is, or comes to be, in that state."""
        while self.supervisor.reports[rank].state is not state:
            await self.changed.wait()
        return anyio.current_time()


def is_killed(child: FakeChild) -> bool:
    return child.status == -signal.SIGKILL
