"""StepCore: what a synchronous front end needs of an engine core, in this process or in others.

This module knows no implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from triolet.args import EngineArgs
from triolet.core.control import PauseMode, SleepPart
from triolet.models.source import ModelFiles
from triolet.request import Request, TokenOutput

__all__ = ["StepCore", "StepCoreFactory"]


class StepCore(Protocol):
    """Runs requests to their end, one step at a time. Every call returns once it has been done.

    ``is_quiet``: a pause is complete, so that no step would do anything.
    """

    @property
    def max_model_len(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def is_paused(self) -> bool: ...
    @property
    def is_sleeping(self) -> bool: ...
    @property
    def is_quiet(self) -> bool: ...

    def add(self, *requests: Request) -> None:
        """Queue requests that belong together. Raises OverloadedError or PromptTooLongError."""
        ...

    def abort(self, request_id: int) -> object:
        """Take a request out; ids that have ended are ignored."""
        ...

    def step(self) -> list[TokenOutput]:
        """What came of the next step, or since the last one; nothing where there is nothing to do.

        Raises EngineDeadError.
        """
        ...

    def pause(self, mode: PauseMode) -> list[TokenOutput]:
        """Start no request from here on; → what that ended. Complete once :attr:`is_quiet`."""
        ...

    def resume(self) -> None:
        """Go on. Raises ConflictError while asleep."""
        ...

    def sleep(self, level: int) -> None:
        """Release what ``level`` says, a pause being complete."""
        ...

    def wake(self, tags: Iterable[SleepPart] | None) -> None:
        """Have these parts again, or all. Raises InvalidRequestError or ModelLoadError."""
        ...

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool: ...

    def reset(self) -> None:
        """Drop every request, in whatever state an interrupted call left them."""
        ...

    def close(self) -> None:
        """Give everything back; idempotent."""
        ...


StepCoreFactory = Callable[[EngineArgs, ModelFiles, Callable[[str], None]], StepCore]
