"""EngineClient: how a front end reaches the engine core, wherever that runs.

This module knows no text and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.core.engine_core import load_core
from triolet.core.service import CoreService
from triolet.models.source import ModelFiles
from triolet.request import Request, TokenOutput
from triolet.statistics import Histogram, SchedulerStatistics

__all__ = ["ClientFactory", "EngineClient", "open_client"]


class EngineClient(Protocol):
    """The core as a front end sees it. All calls are made on the loop that runs :meth:`run`."""

    num_steps: int
    step_duration: Histogram
    cancel_latency: Histogram

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Start the core, report started when it is ready, serve until cancelled, give everything back."""
        ...

    async def stop(self) -> None:
        """Start no further step; return once the one under way has ended and its outputs are handed on."""
        ...

    def add(self, request: Request) -> None:
        """Queue a request; never blocks. Raises OverloadedError or PromptTooLongError."""
        ...

    def abort(self, request_id: int) -> None:
        """Take a request out at once; unknown ids are ignored."""
        ...

    async def get_outputs(self) -> list[TokenOutput]:
        """All token outputs since the last call; waits for at least one. None at all once stopped."""
        ...

    def scheduler_statistics(self) -> SchedulerStatistics: ...

    def last_step_age(self) -> float | None: ...

    def oldest_waiting_age(self) -> float | None: ...


ClientFactory = Callable[[EngineArgs, ModelFiles, Callable[[str], None]], EngineClient]


def open_client(args: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]) -> EngineClient:
    """The client that the arguments ask for; nothing is loaded before it runs."""
    return CoreService(partial(load_core, args, files), on_phase=on_phase)
