"""The control surface of the fake engine: what it is asked is written down, and changes two flags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["FakeControl"]


class FakeControl:
    """``calls`` are names with arguments. ``conflict`` is raised by what comes next."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.conflict: Exception | None = None
        self.is_paused = False
        self.is_sleeping = False
        self.no_room: Exception | None = None

    def check_room(self) -> None:
        if self.no_room is not None:
            raise self.no_room

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.conflict is not None:
            raise self.conflict

    async def pause(self, mode: str = "abort", *, clear_cache: bool = True) -> None:
        self._called("pause", mode, clear_cache)
        self.is_paused = True

    async def resume(self) -> None:
        self._called("resume")
        self.is_paused = False

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self._called("sleep", level, mode)
        self.is_sleeping = True

    async def wake_up(self, tags: Iterable[str] | None = None) -> None:
        self._called("wake_up", tags)
        self.is_sleeping = tags is not None

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        self._called("reset_prefix_cache", reset_running_requests)
        return reset_running_requests

    async def restart_rank(self, rank: int, *, seconds: float = 30.0) -> None:
        self._called("restart_rank", rank, seconds)

    async def restart_ranks(self, *, seconds: float = 30.0) -> None:
        self._called("restart_ranks", seconds)
