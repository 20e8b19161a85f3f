"""What signals mean to every process that users start: leave in order, leave at once, replace the engines.

SIGTERM or SIGINT is obeyed by leaving in order, a second one by ending at once with exit code 128 plus its
number, SIGHUP by reading files again and a rolling restart, where there is something to read or to restart.
Who leaves goes no further with a restart.
This module knows neither HTTP nor processes; it runs in the main thread only, where signals arrive.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from triolet.errors import TrioletError

__all__ = ["SignalOrders"]

logger = logging.getLogger("triolet.signals")


@dataclass(kw_only=True)
class SignalOrders:
    """``leave`` is called with the name of the first signal, ``reload`` and ``restart`` on SIGHUP.

    ``leave`` and ``restart`` may take their time. Without ``restart`` and ``reload`` a hang-up does what the
    system has it do. ``is_leaving``: whether the process leaves already for a reason of its own, so that the
    first signal ends it. ``exit_now`` ends the process.
    """

    leave: Callable[[str], Coroutine[Any, Any, object]]
    restart: Callable[[], Coroutine[Any, Any, object]] | None = None
    reload: Callable[[], object] | None = None
    is_leaving: Callable[[], bool] = lambda: False
    exit_now: Callable[[int], Any] = os._exit
    _has_been_told: bool = field(default=False, init=False)
    _restart_scope: anyio.CancelScope | None = field(default=None, init=False)

    async def obey(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report started once signals are taken; obey them until cancelled."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        if self.restart is not None or self.reload is not None:
            numbers.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async with anyio.create_task_group() as tasks:
                await self._take(signals, tasks)

    async def _take(self, signals: AsyncIterator[signal.Signals], tasks: TaskGroup) -> None:
        async for number in signals:
            is_leaving = self._has_been_told or self.is_leaving()
            if number == signal.SIGHUP:
                self._hang_up(tasks, is_leaving=is_leaving)
            elif is_leaving:
                self.exit_now(128 + number)
            else:
                self._has_been_told = True
                if self._restart_scope is not None:
                    self._restart_scope.cancel()
                tasks.start_soon(self.leave, signal.Signals(number).name)

    def _hang_up(self, tasks: TaskGroup, *, is_leaving: bool) -> None:
        if self.reload is not None:
            self.reload()
        if self.restart is None:
            return
        if is_leaving or self._restart_scope is not None:
            why = "the server is shutting down" if is_leaving else "they are being restarted already"
            logger.warning("SIGHUP: the engines are not restarted: %s", why)
            return
        self._restart_scope = anyio.CancelScope()
        tasks.start_soon(self._restart, self.restart, self._restart_scope)

    async def _restart(
        self, restart: Callable[[], Coroutine[Any, Any, object]], scope: anyio.CancelScope
    ) -> None:
        try:
            with scope:
                await restart()
                logger.info("all engines are restarted")
        except TrioletError as error:
            logger.error("not all engines are restarted: %s", error)
        finally:
            self._restart_scope = None
        if scope.cancelled_caught:
            logger.warning("not all engines are restarted: the server is shutting down")
