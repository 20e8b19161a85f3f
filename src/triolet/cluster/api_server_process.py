"""One API server as its launcher sees it, from its start to its end.

This module knows neither HTTP nor engines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import anyio

from triolet.cluster.launcher_link import UNANSWERED, Answer, answer_call
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Call, Dead, Drain, Message, Result, Start
from triolet.cluster.processes import ChildProcess, ProcessSpec, ProcessStarter, describe_exit
from triolet.cluster.rank_calls import CallLostError, RankCalls
from triolet.errors import EngineError

__all__ = ["ApiServerProcess"]

END_PATIENCE = 2.0
LAST_WORDS_PATIENCE = 1.0
LOADING_SILENCE_SECONDS = 60.0
"""One that loads may be silent for as long, whatever the time-out: imports hold the interpreter."""

logger = logging.getLogger("triolet.cluster")


class ApiServerProcess:
    """Starts an API server and follows it. ``greeting`` is what it is told first, after ``start``.

    ``answers`` are the calls that it may make. ``on_line`` is called when it has a line for the user, which
    is in ``lines``. ``stall_timeout``: seconds of silence, a minute at least, after which it hangs.
    """

    def __init__(
        self,
        spec: ProcessSpec,
        start: Start,
        starter: ProcessStarter,
        *,
        greeting: Callable[[], Sequence[Message]],
        answers: Mapping[str, Answer],
        on_line: Callable[[], None],
        stall_timeout: float,
    ) -> None:
        self.lines: list[str] = []
        self._spec = spec
        self._start = start
        self._starter = starter
        self._greeting = greeting
        self._answers = answers
        self._on_line = on_line
        self._silence = max(stall_timeout, LOADING_SILENCE_SECONDS)
        self._child: ChildProcess | None = None
        self._link: Link | None = None
        self._calls: RankCalls | None = None
        self._error: Exception | None = None
        self._is_told_to_end = False
        self._is_link_over = anyio.Event()
        self._ended = anyio.Event()

    async def run(self) -> None:
        """Live through it. Raises what it died of, unless it was told to end.

        Cancellation: kills the process.
        """
        try:
            async with anyio.create_task_group() as tasks:
                child: ChildProcess = await tasks.start(self._starter.run, self._spec)
                status = await self._follow(child)
        finally:
            self._ended.set()
        if not self._is_told_to_end:
            told = "" if not child.last_lines else f"; it wrote: {child.last_lines[-1].strip()}"
            raise self._error or EngineError(f"{self._spec.name} ended: {describe_exit(status)}{told}")

    def post(self, message: Message) -> None:
        """Tell it something; nothing while there is no process."""
        if self._link is not None:
            self._link.post(message)

    def call(self, method: str, *arguments: Any) -> Coroutine[Any, Any, Any]:
        """Ask it at once; what is returned is to be awaited, and gives its answer.

        Raises the error that it answers with, CallLostError where it has ended.
        """
        if self._calls is None:
            return _not_running(self._spec.name)
        return self._calls.call(method, *arguments)

    async def drain(self, drain: Drain, patience: float) -> None:
        """Have it end as ``drain`` says; ``patience`` seconds after the time for that it is killed.

        Return once it has ended.
        """
        self._is_told_to_end = True
        self.post(drain)
        seconds = drain.lead_seconds + drain.seconds + patience
        with anyio.move_on_after(seconds if self._link is not None else 0):
            await self._ended.wait()
            return
        logger.warning("%s did not end in time and is killed", self._spec.name)
        if self._child is not None:
            self._child.kill()
        await self._ended.wait()

    # ------------------------------------------------------------------ the tasks

    async def _follow(self, child: ChildProcess) -> int:
        link = Link(child.stream, name=self._spec.name, liveness_timeout=self._silence)
        async with anyio.create_task_group() as tasks:
            self._child = child
            self._link, self._calls = link, RankCalls(link, self._spec.name, names_errors=False)
            tasks.start_soon(link.run)
            tasks.start_soon(self._receive, link, child, tasks)
            link.post(self._start)
            for message in self._greeting():
                link.post(message)
            if self._is_told_to_end:
                child.kill()
            status = await child.wait()
            with anyio.move_on_after(LAST_WORDS_PATIENCE):
                await self._is_link_over.wait()
            self._link = None
            self._calls.lose()
            tasks.cancel_scope.cancel()
        return status

    async def _receive(self, link: Link, child: ChildProcess, tasks: anyio.abc.TaskGroup) -> None:
        """Take what it says. Where its link ends but it does not, it is put down."""
        try:
            while True:
                match await link.receive():
                    case Call(call_id, _, arguments) if call_id == UNANSWERED:
                        self.lines += arguments
                        self._on_line()
                    case Call() as call:
                        tasks.start_soon(answer_call, link, call, self._answers)
                    case Result() as result:
                        assert self._calls is not None
                        self._calls.settle(result)
                    case Dead(error):
                        self._error = error.exception()
                    case message:
                        logger.warning("%s said %s, which is not for its parent", link.name, message)
        except LinkClosedError as exc:
            self._is_link_over.set()
            await anyio.sleep(END_PATIENCE)
            self._error = self._error or EngineError(f"{self._spec.name} hangs: {exc}")
            child.kill()


async def _not_running(name: str) -> Any:
    raise CallLostError(f"{name} does not run")
