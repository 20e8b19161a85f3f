"""Whether the engines of a launch are meant to be paused or asleep, and how that changes.

A :class:`ControlState` is what all engines and front ends of a launch agree on, an :class:`Order` the step
from one to the next. Follows :class:`~triolet.core.engine_core.EngineCore` in what pausing, sleeping and
waking mean. Pure: this module knows no engine and no call.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from triolet.core.control import PauseMode, SleepPart

__all__ = ["ALL_PARTS", "ControlState", "Order"]

ALL_PARTS: frozenset[SleepPart] = frozenset(get_args(SleepPart))


@dataclass(frozen=True, slots=True)
class ControlState:
    """``version`` counts what was asked for. ``asleep``: parts, sorted; ``level``: of the sleep.

    ``mode``: whether requests that have begun finish (``wait``) or are frozen.
    """

    version: int = 0
    is_paused: bool = False
    mode: Literal["wait", "keep"] = "keep"
    asleep: tuple[SleepPart, ...] = ()
    level: int = 0

    @property
    def parts_asleep(self) -> frozenset[SleepPart]:
        return frozenset(self.asleep)

    def again(self) -> ControlState:
        """The same, asked for anew."""
        return replace(self, version=self.version + 1)

    def paused(self, mode: PauseMode) -> ControlState:
        """No further requests start."""
        return replace(self.again(), is_paused=True, mode="wait" if mode == "wait" else "keep")

    def resumed(self) -> ControlState:
        """Requests go on."""
        return ControlState(self.version + 1)

    def sleeping(self, level: int, mode: PauseMode) -> ControlState:
        """Paused, and from level 1 on memory is given back."""
        parts = ALL_PARTS if level > 0 else {*self.asleep, "scheduling"}
        kept = level if level > 0 or not self.asleep else self.level
        return replace(self.paused(mode), asleep=tuple(sorted(parts)), level=kept)

    def woken(self, parts: Collection[SleepPart]) -> ControlState:
        """These parts are there again; when nothing is missing, requests go on."""
        left = self.parts_asleep.difference(parts)
        if parts and left <= {"scheduling"}:
            return self.resumed()
        return replace(self.again(), asleep=tuple(sorted(left)))

    def calls(self) -> list[tuple[str, tuple[Any, ...]]]:
        """What takes an engine there that is no more asleep than this; methods of an order, arguments."""
        if not self.asleep:
            return [("pause", (self.mode, False)) if self.is_paused else ("resume", ())]
        woken = sorted(ALL_PARTS - self.parts_asleep) if self.level else []
        return [("sleep", (self.level, self.mode)), *([("wake_up", (woken,))] if woken else [])]

    def asleep_again(self, asleep: ControlState) -> ControlState:
        """As in ``asleep``, since not all could be woken."""
        return replace(asleep, version=self.version + 1)


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for last, and the state that it leads to.

    ``method`` of an engine client, with these ``arguments``, takes an engine there that was in the state
    before; without one, engines find their way themselves. ``ends_requests``: front ends end all they have.
    """

    state: ControlState = ControlState()
    method: str | None = None
    arguments: tuple[Any, ...] = ()
    ends_requests: bool = False

    @property
    def forgets_prefixes(self) -> bool:
        """Whether prefix caches are empty after it, if they can be."""
        match self.method, self.arguments:
            case "pause", (_, clear_cache):
                return bool(clear_cache)
            case "sleep", (level, _):
                return bool(level > 0)
            case method, _:
                return method == "reset_prefix_cache"
