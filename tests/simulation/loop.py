"""A run of an event loop in which nothing is left to chance: virtual time, a seeded scheduler, stopped tasks.

Trio's clock stands still while any task can run and jumps when none can. Trio draws the order in which it
runs the tasks that are ready: here from a seed, and from the tasks in the order of their birth, since the
sets that it keeps them in are ordered by their places in memory. A task of a stopped process is kept back
when it becomes ready, and runs on when its process does: that is what SIGSTOP and SIGCONT do.

This module knows nothing of what runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from unittest import mock

import anyio
from trio._core import _run
from trio.lowlevel import Task
from trio.testing import MockClock

__all__ = ["OWNER", "TaskOwner", "release", "run_seeded"]


class TaskOwner(Protocol):
    """Whose the tasks are that begin while it is set as :data:`OWNER`."""

    is_stopped: bool
    kept_back: list[Task]


OWNER: ContextVar[TaskOwner | None] = ContextVar("OWNER", default=None)

_reschedule = _run.Runner.reschedule


def _reschedule_unless_stopped(runner: _run.Runner, task: Task, *outcome: Any) -> None:
    _reschedule(runner, task, *outcome)
    owner = task.context.get(OWNER)
    if owner is not None and owner.is_stopped:
        owner.kept_back.append(runner.runq.pop())


def release(owner: TaskOwner) -> None:
    """Let the tasks run that have become ready while their owner was stopped."""
    _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(owner.kept_back)
    owner.kept_back.clear()


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    with (
        mock.patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        mock.patch.object(_run.Runner, "reschedule", _reschedule_unless_stopped),
    ):
        _run._r.seed(seed)
        yield


def run_seeded(seed: int, main: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function to its end, with all that it starts, in no time."""
    with _deterministic(seed):
        anyio.run(main, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
