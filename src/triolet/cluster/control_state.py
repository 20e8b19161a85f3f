"""ControlState: whether engines behind a router are meant to be paused or asleep, for those that join them.

Follows :class:`~triolet.core.engine_core.EngineCore` in what pausing, sleeping and waking mean. Pure: this
module knows no engine and no call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, get_args

from triolet.core.control import SleepPart

__all__ = ["ControlState"]

ALL_PARTS: frozenset[SleepPart] = frozenset(get_args(SleepPart))


class ControlState:
    """What was asked for last. ``version`` counts the changes."""

    def __init__(self) -> None:
        self.version = 0
        self.is_paused = False
        self.asleep: frozenset[SleepPart] = frozenset()
        self._level = 0

    def pause(self) -> None:
        """Start no further requests."""
        self._set(True, self.asleep)

    def resume(self) -> None:
        """Go on."""
        self._set(False, frozenset())

    def sleep(self, level: int) -> None:
        """Pause, and from level 1 on give memory back."""
        if level > 0 or not self.asleep:
            self._level = level
        self._set(True, ALL_PARTS if level > 0 else self.asleep | {"scheduling"})

    def wake_up(self, parts: Collection[SleepPart]) -> None:
        """These are there again; when nothing is missing, requests go on."""
        left = self.asleep.difference(parts)
        if parts and left <= {"scheduling"}:
            self.resume()
        else:
            self._set(self.is_paused, left)

    def sleep_on(self, asleep: frozenset[SleepPart]) -> None:
        """These could not be woken."""
        self._set(True, asleep)

    def calls(self) -> list[tuple[str, tuple[Any, ...]]]:
        """What an engine that has just started is to be asked, in this order, to be like the others."""
        if not self.asleep:
            return [("pause", ("keep", False))] if self.is_paused else []
        woken = sorted(ALL_PARTS - self.asleep) if self._level else []
        return [("sleep", (self._level, "keep")), *([("wake_up", (woken,))] if woken else [])]

    def _set(self, is_paused: bool, asleep: frozenset[SleepPart]) -> None:
        self.version += 1
        self.is_paused, self.asleep = is_paused, asleep
