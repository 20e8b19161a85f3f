"""``FetchProgress``: what is said while a model is being fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["FetchProgress", "ProgressCallback"]


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch has come, in bytes of its current phase; ``total`` is None where it is not known.

    ``waiting``: another process fetches the same model. Then come ``downloading`` and ``extracting``.
    """

    phase: Literal["waiting", "downloading", "extracting"]
    done: int
    total: int | None

    def __str__(self) -> str:
        if self.phase == "waiting":
            return "waiting for another process that fetches the model"
        of_total = "" if self.total is None else f" of {self.total / 1e6:.0f}"
        return f"{self.phase} the model: {self.done / 1e6:.0f}{of_total} MB"


ProgressCallback = Callable[[FetchProgress], None]
"""Called several times a second, in the thread that fetches. Raising from it ends the fetch: child processes
are killed, the exception goes on to the caller, and what has been fetched serves the next attempt."""
