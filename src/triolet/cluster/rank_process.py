"""One engine process as its parent sees it, from its start to its end.

It is told what to be and whom to serve, says what it is doing, and is put down where it makes no progress or
does not end in time. This module knows neither restarts nor other processes.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from dataclasses import replace

import anyio

from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import (
    Beat,
    Dead,
    Drain,
    Message,
    Phase,
    RankLoad,
    Ready,
    RemoteError,
    Start,
    Stop,
    Tally,
    Topology,
)  # fmt: skip
from triolet.cluster.output_lines import last_words
from triolet.cluster.processes import ChildProcess, ProcessSpec, ProcessStarter, describe_exit
from triolet.errors import EngineDeadError, ModelLoadError, UsageError
from triolet.statistics import RankState, RankStatistics

__all__ = ["RankProcess"]

LOADING_SILENCE_SECONDS = 300.0
"""An engine that loads may be silent for as long: libraries are read from slow disks with the loop held."""
IN_TIME = "it did not end in time and was killed"
END_PATIENCE = 2.0
"""Seconds that an engine may take to end, beyond those that it has to finish requests."""
LAST_WORDS_PATIENCE = 1.0
TRACE_PATIENCE = 0.5
"""Seconds between asking a hanging process where its threads are and killing it."""

logger = logging.getLogger("triolet.cluster")


class RankProcess:
    """Starts a process and follows it. ``on_change`` is called whenever there is news of it.

    ``state``, ``load`` and ``phase`` are what was heard last, ``cause`` why it is no longer ready,
    ``max_model_len`` the context in tokens that it was ready with.
    ``stall_timeout``: seconds without an ended step, or without a word, after which it counts as hanging;
    ``load_timeout``: seconds in one phase of loading.
    """

    def __init__(
        self,
        start: Start,
        spec: ProcessSpec,
        starter: ProcessStarter,
        *,
        front_ends: tuple[str, ...],
        stall_timeout: float,
        load_timeout: float,
        on_change: Callable[[], None],
    ) -> None:
        self.state = RankState.STARTING
        self.load: RankLoad | None = None
        self.phase: str | None = None
        self.cause: str | None = None
        self.max_model_len: int | None = None
        self._tally: RankStatistics | None = None
        self._start = start
        self._spec = spec
        self._starter = starter
        self._front_ends = front_ends
        self._stall_timeout = stall_timeout
        self._load_timeout = load_timeout
        self._phase_began = -math.inf
        self._on_change = on_change
        self._link: Link | None = None
        self._last_heard = -math.inf
        self._error: Exception | None = None
        self._is_told_to_end = self._is_put_down = False
        self._patience = anyio.CancelScope()
        self._is_link_over = anyio.Event()

    @property
    def counted(self) -> RankStatistics | None:
        """What it has counted, and those before it; None if it has told nothing."""
        if self._tally is None or self.load is None:
            return self._tally
        return replace(self._tally, num_steps=max(self._tally.num_steps, self.load.num_steps))

    async def run(self) -> Exception | None:
        """Live through it; None where it ended when told to, else what it died of.

        ``cause`` then says what went wrong on its way out, if anything did.
        Cancellation: kills the process.
        """
        async with anyio.create_task_group() as task_group:
            try:
                child: ChildProcess = await task_group.start(self._starter.run, self._spec)
            except OSError as exc:
                return EngineDeadError(f"its process cannot be started: {exc}")
            status = await self._follow(child)
        self.state = RankState.DOWN
        if status != 0 and self.cause is None and not self._is_put_down:
            self.cause = _cause_of_exit(status, child.last_lines)
        if self._is_told_to_end:
            return None
        return self._error or EngineDeadError(self.cause or _cause_of_exit(status, child.last_lines))

    def set_topology(self, front_ends: tuple[str, ...]) -> None:
        """From here on it is to serve these front ends."""
        self._front_ends = front_ends
        if self._link is not None:
            self._link.post(Topology(front_ends))

    def end(self, seconds: float) -> None:
        """Have it finish its requests within ``seconds`` and end; one that still starts ends at once."""
        self._is_told_to_end = True
        patience = END_PATIENCE
        if self._link is None or self.state is RankState.STARTING:
            patience = 0.0
            self._is_put_down = True
        elif seconds > 0:
            self._link.post(Drain(seconds))
            patience += seconds
        else:
            self._link.post(Stop())
        self._end_within(patience)
        self._change(RankState.DRAINING)

    # ------------------------------------------------------------------ the tasks

    async def _follow(self, child: ChildProcess) -> int:
        """Speak with the process until it has ended; its exit status."""
        self._last_heard = self._phase_began = anyio.current_time()
        link = Link(child.stream, name=self._spec.name)
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(link.run)
            task_group.start_soon(self._receive, link, child)
            task_group.start_soon(self._watch, child)
            task_group.start_soon(self._end_in_time, child)
            self._link = link
            link.post(self._start)
            link.post(Topology(self._front_ends))
            status = await child.wait()
            with anyio.move_on_after(LAST_WORDS_PATIENCE):
                await self._is_link_over.wait()
            self._link = None
            task_group.cancel_scope.cancel()
        return status

    async def _receive(self, link: Link, child: ChildProcess) -> None:
        """Take what the process says. Where its link ends but it does not, it is put down."""
        try:
            while True:
                self._take(await link.receive())
        except LinkClosedError as exc:
            self._is_link_over.set()
            await anyio.sleep(END_PATIENCE)
            self.cause = f"its link ended, but it did not: {exc}"
            child.kill()

    def _take(self, message: Message) -> None:
        self._last_heard = anyio.current_time()
        match message:
            case Phase(text):
                if text != self.phase:
                    self._phase_began = self._last_heard
                self.phase = text
                self._on_change()
            case Beat(load):
                self.load = load
                self._on_change()
            case Tally(statistics):
                self._tally = statistics
            case Ready(max_model_len=max_model_len):
                self.max_model_len = max_model_len
                if self.state is RankState.STARTING:
                    logger.info("%s is ready", self._spec.name)
                    self.phase = None
                    self._change(RankState.READY)
            case Dead(error):
                self._error = _what_it_died_of(error)
                self.cause = str(self._error)
                self._end_within(END_PATIENCE)
                self._change(RankState.DOWN)
            case _:
                logger.warning("%s said %s, which is not for its parent", self._spec.name, message)

    async def _watch(self, child: ChildProcess) -> None:
        """Put the process down once it has made no progress for too long."""
        interval = min(1.0, self._stall_timeout / 4)
        while (cause := self._stall()) is None:
            due = anyio.current_time() + interval
            await anyio.sleep(interval)
            held_up = anyio.current_time() - due  # it is we who were
            self._last_heard += held_up
            self._phase_began += held_up
        logger.error("%s hangs: %s", self._spec.name, cause)
        self.cause = cause
        self._change(RankState.DOWN)
        child.send_signal(signal.SIGUSR1)
        await anyio.sleep(TRACE_PATIENCE)
        child.kill()

    def _stall(self) -> str | None:
        """Why the process counts as hanging; None as long as it does not."""
        silence = anyio.current_time() - self._last_heard
        limit = self._stall_timeout
        if self.state is RankState.STARTING:
            limit = max(limit, LOADING_SILENCE_SECONDS)
        if silence > limit:
            return f"nothing was heard of it for {silence:.0f} s"
        in_phase = anyio.current_time() - self._phase_began
        if self.state is RankState.STARTING and in_phase > self._load_timeout:
            phase = self.phase or "starting"
            return f'it has been at "{phase}" for {in_phase:.0f} s (--engine-load-timeout)'
        if self.load is None or self.load.step_age is None:
            return None
        age = self.load.step_age + silence
        return f"its step did not end for {age:.0f} s" if age > self._stall_timeout else None

    def _end_within(self, seconds: float) -> None:
        """Put it down if it has not ended by then."""
        self._patience.deadline = min(self._patience.deadline, anyio.current_time() + seconds)

    async def _end_in_time(self, child: ChildProcess) -> None:
        with self._patience:
            await anyio.sleep_forever()
        if not self._is_put_down:
            self.cause = self.cause or IN_TIME
        child.kill()

    def _change(self, state: RankState) -> None:
        self.state = state
        self._on_change()


def _what_it_died_of(error: RemoteError) -> Exception:
    """The error as it was where the engine could not start for it, else the death of the engine."""
    exception = error.exception()
    if isinstance(exception, UsageError | ModelLoadError | EngineDeadError):
        return exception
    return EngineDeadError(f"{error.name}: {error.text}" if error.text else error.name)


def _cause_of_exit(status: int, last_lines: tuple[str, ...]) -> str:
    if status == -signal.SIGKILL:  # it wrote nothing about that
        return f"{describe_exit(status)}, by another process or by the system for lack of memory"
    return f"{describe_exit(status)}{last_words(last_lines)}"
