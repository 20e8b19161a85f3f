"""Where the shards of a model meet, and how long they wait for each other. This module loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ShardPlace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlace:
    """One shard's part in a meeting.

    ``index`` of ``count``. ``host`` and ``port`` are where shard 0 listens: on the socket ``listener``, a
    file descriptor that is then its own; None for the others. ``join_timeout``: seconds until all have to be
    there; ``step_timeout``: seconds that shards wait for each other within a step; ``liveness_timeout``:
    seconds after which a machine that does not answer at all counts as gone.
    """

    index: int
    count: int
    host: str
    port: int
    join_timeout: float
    step_timeout: float
    liveness_timeout: float
    listener: int | None = None
