"""One rank of an engine: its process, and the next one when that has died or is to be replaced.

This module knows nothing of other ranks, nor of what a process says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from triolet.cluster.codec import to_plain
from triolet.cluster.messages import RankReport, Start
from triolet.cluster.processes import ProcessSpec, ProcessStarter
from triolet.cluster.rank_process import RankProcess
from triolet.cluster.restart_budget import RestartBudget
from triolet.errors import ConflictError, EngineDeadError, ModelLoadError, UsageError
from triolet.statistics import RankState, RankStatistics

__all__ = ["RankLaunch", "SupervisedRank"]

logger = logging.getLogger("triolet.cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLaunch:
    """How each process of a rank is started, and how it is watched.

    ``args``, ``secret``, ``extra``: see :class:`~triolet.cluster.messages.Start`. ``role``, ``environment``:
    see :class:`~triolet.cluster.processes.ProcessSpec`. ``stall_timeout``, ``load_timeout``: see
    :class:`~triolet.cluster.rank_process.RankProcess`. ``restart_budget``: restarts in ten minutes.
    """

    rank: int
    role: str
    args: dict[str, Any]
    secret: bytes = field(repr=False)
    extra: dict[str, Any]
    environment: Mapping[str, str]
    stall_timeout: float
    load_timeout: float
    restart_budget: int
    first_generation: int = 0

    def start(self, generation: int, max_model_len: int | None, counted: RankStatistics | None) -> Start:
        """What the process of that generation is told.

        ``max_model_len``: the context that it must have. ``counted``: what those before it had counted.
        """
        args = self.args if max_model_len is None else self.args | {"max_model_len": max_model_len}
        extra = self.extra if counted is None else self.extra | {"counted": to_plain(counted)}
        return Start("engine", args, self.rank, generation, self.secret, extra)


class SupervisedRank:
    """Keeps one rank going. ``on_report`` is called with what is known of it whenever that changes."""

    def __init__(
        self, launch: RankLaunch, starter: ProcessStarter, on_report: Callable[[RankReport], None]
    ) -> None:
        self._launch = launch
        self._starter = starter
        self._on_report = on_report
        self._budget = RestartBudget(launch.restart_budget)
        self._front_ends: tuple[str, ...] = ()
        self._generation = launch.first_generation
        self._num_restarts = 0
        self._cause: str | None = None
        self._max_model_len: int | None = None
        self._counted: RankStatistics | None = None
        self._was_ready = False
        self._is_stopping = False
        self._changed = anyio.Event()
        self._process = self._next_process()
        self._resting: RankState | None = None

    @property
    def name(self) -> str:
        return f"engine {self._launch.rank}"

    @property
    def report(self) -> RankReport:
        """What is known of it now; ``cause`` is why it ended the last time, until it is ready again."""
        process = self._process
        state = process.state if self._resting is None else self._resting
        return RankReport(
            rank=self._launch.rank,
            generation=self._generation,
            state=state,
            load=process.load if state in (RankState.READY, RankState.DRAINING) else None,
            cause=self._cause if process.cause is None else process.cause,
            num_restarts=self._num_restarts,
            phase=process.phase if state is RankState.STARTING else None,
        )

    async def run(self) -> None:
        """Keep a process running until told to stop.

        Raises what the first start failed with where that is a UsageError or a ModelLoadError, since no
        restart can help; EngineDeadError, with the cause, once the budget is spent.
        """
        while True:
            error = await self._process.run()
            if error is None and self._process.cause is not None:
                self._cause = self._process.cause
                logger.error("%s was to end, and did not end well: %s", self.name, self._cause)
            if self._is_stopping:
                self._rest(RankState.DOWN)
                return
            if error is not None:
                await self._recover(error)
            if self._is_stopping:
                return
            self._num_restarts += error is not None
            self._counted = self._process.counted or self._counted
            self._generation += 1
            self._process = self._next_process()
            self._resting = None
            self._note_change()

    def set_topology(self, front_ends: tuple[str, ...]) -> None:
        """From here on it is to serve these front ends."""
        self._front_ends = front_ends
        self._process.set_topology(front_ends)

    def stop(self, seconds: float) -> None:
        """Have it finish its requests within ``seconds`` and end for good."""
        self._is_stopping = True
        self._process.end(seconds)

    async def restart(self, seconds: float) -> None:
        """Replace the process by a new one, once it has finished its requests, within ``seconds``.

        Return when the new one is ready. Raises ConflictError where there is none to replace, EngineDeadError
        where none comes.
        """
        if self.report.state is not RankState.READY:
            raise ConflictError(
                f"{self.name} is {self.report.state}: only one that is ready can be restarted"
            )
        generation = self._generation
        self._process.end(seconds)
        while self._generation == generation or self.report.state is not RankState.READY:
            if self._resting is RankState.DEAD or self._is_stopping:
                raise EngineDeadError(f"{self.name} did not come back: {self._cause or 'it was stopped'}")
            await self._changed.wait()

    async def wait_ready(self) -> None:
        """Return once it has been ready, or has ended for good."""
        while not self._was_ready and self._resting is not RankState.DEAD and not self._is_stopping:
            await self._changed.wait()

    async def _recover(self, error: Exception) -> None:
        """Wait as long as the budget says; raises where there is nothing to wait for."""
        self._cause = str(error)
        delay = self._budget.spend(anyio.current_time())
        is_hopeless = isinstance(error, UsageError | ModelLoadError) and not self._was_ready
        if delay is None or is_hopeless:
            self._rest(RankState.DEAD)
            raise error if is_hopeless else self._budget_spent(error)
        logger.error("%s died: %s; starting it again in %g s", self.name, self._cause, delay)
        self._rest(RankState.DOWN)
        with anyio.move_on_after(delay):
            while not self._is_stopping:
                await self._changed.wait()

    def _budget_spent(self, error: Exception) -> EngineDeadError:
        return EngineDeadError(
            f"{self.name} died, and --engine-restart-budget {self._launch.restart_budget} allows no further "
            f"restart within ten minutes: {error}"
        )

    def _next_process(self) -> RankProcess:
        launch = self._launch
        return RankProcess(
            launch.start(self._generation, self._max_model_len, self._counted),
            ProcessSpec(name=self.name, role=launch.role, environment=launch.environment),
            self._starter,
            front_ends=self._front_ends,
            stall_timeout=launch.stall_timeout,
            load_timeout=launch.load_timeout,
            on_change=self._note_change,
        )

    def _rest(self, state: RankState) -> None:
        """There is no process."""
        self._resting = state
        self._note_change()

    def _note_change(self) -> None:
        if self._process.state is RankState.READY:
            self._was_ready = True
            self._cause = None
            self._max_model_len = self._process.max_model_len  # front ends count on it from here on
        self._changed.set()
        self._changed = anyio.Event()
        self._on_report(self.report)
