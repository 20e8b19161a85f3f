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


ProgressCallback = Callable[[FetchProgress], None]
"""Called several times a second, in the thread that fetches. Raising from it ends the fetch: child processes
are killed, the exception goes on to the caller, and what has been fetched serves the next attempt."""
