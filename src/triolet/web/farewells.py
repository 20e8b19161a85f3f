"""What callers have yet to be told before a server that leaves closes HTTP: who polls has no request open.

Knows names alone.
"""

from __future__ import annotations

import anyio

__all__ = ["Farewells"]


class Farewells:
    """What is owed, by name."""

    def __init__(self) -> None:
        self._owed: set[str] = set()
        self._are_told = anyio.Event()

    def owe(self, name: str) -> None:
        """Somebody will ask for this."""
        self._owed.add(name)

    def tell(self, name: str) -> None:
        """Somebody has been told. Idempotent, and of no consequence for what is not owed."""
        self._owed.discard(name)
        if not self._owed:
            self._are_told.set()

    async def wait_told(self) -> None:
        """Wait until nothing is owed."""
        while self._owed:
            self._are_told = anyio.Event()
            await self._are_told.wait()
