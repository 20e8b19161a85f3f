"""RestartTurn: one engine is replaced at a time, so that the others can serve meanwhile.

This module knows no process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from triolet.errors import ConflictError

__all__ = ["RestartTurn"]


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
