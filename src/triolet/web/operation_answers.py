"""What the routes for those who run the server answer with: the types of ``/openapi.json``.

A test holds the answers to these types. Knows nothing of how they are made.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from triolet.statistics import EngineState, RankHealth

__all__ = [
    "Aborted",
    "CacheReset",
    "Done",
    "Health",
    "Load",
    "PauseState",
    "Readiness",
    "Restarted",
    "SleepState",
    "Version",
]


class Done(Struct):
    """How things are now."""

    status: str


class Readiness(Struct):
    """Whether new work is taken, and if not, what the server does and for how many seconds it has."""

    status: str
    phase: str | UnsetType | None = UNSET
    phase_seconds: float | UnsetType | None = UNSET


class Health(Struct):
    """The state in detail. Ages are seconds; ``cause`` is the reason of death."""

    state: EngineState
    phase: str | None
    phase_seconds: float | None
    last_step_age: float | None
    oldest_waiting_age: float | None
    cause: str | None
    ranks: list[RankHealth]
    is_paused: bool | None
    is_sleeping: bool | None


class Load(Struct):
    """How busy the engine is. ``server_load`` is the number of its requests, ``kv_cache_usage`` a share."""

    server_load: int
    num_requests_running: int
    num_requests_waiting: int
    kv_cache_usage: float


class Version(Struct):
    """The version of triolet."""

    version: str


class PauseState(Struct):
    """Whether the engine is paused."""

    is_paused: bool


class SleepState(Struct):
    """Whether anything is still to be woken."""

    is_sleeping: bool


class CacheReset(Struct):
    """Whether the prefixes were forgotten."""

    success: bool


class Aborted(Struct):
    """How many requests were ended."""

    status: Literal["aborted"]
    num_aborted: int


class Restarted(Struct):
    """Which engine has a new process."""

    status: Literal["restarted"]
    rank: int
