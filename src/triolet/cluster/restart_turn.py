"""One engine is replaced at a time, so that the others can serve meanwhile.

This module knows no process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager

from triolet.cluster.wording import is_or_are, numbered
from triolet.errors import ConflictError

__all__ = ["RestartTurn", "restart_in_turn"]


class RestartTurn:
    """Whose turn it is; nobody's at first."""

    def __init__(self) -> None:
        self._rank: int | None = None

    @contextmanager
    def of(self, rank: int) -> Iterator[None]:
        """Have the turn within the block. Raises ConflictError while another has it."""
        if self._rank is not None:
            raise ConflictError(f"engine {self._rank} is being restarted: one at a time")
        self._rank = rank
        try:
            yield
        finally:
            self._rank = None


async def restart_in_turn(ranks: Iterable[int], restart: Callable[[int], Awaitable[None]]) -> None:
    """Restart one after the other, past those that have nothing to be replaced now.

    Raises ConflictError, which says why of each of those and which were replaced, once all others are; and at
    once whatever else ``restart`` raises.
    """
    restarted: list[int] = []
    refusals: list[str] = []
    for rank in ranks:
        try:
            await restart(rank)
        except ConflictError as exc:
            refusals.append(str(exc))
        else:
            restarted.append(rank)
    if refusals and restarted:
        refusals.append(f"{numbered('engine', restarted)} {is_or_are(restarted)} restarted")
    if refusals:
        raise ConflictError("; ".join(refusals))
