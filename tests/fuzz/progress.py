"""What a fuzzer that runs for minutes says meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Progress", "silent", "spoken"]

Progress = Callable[[int], None]
"""Is told the number of each request before it is made."""


def silent(number: int) -> None:
    """Says nothing."""


def spoken(every: int) -> Progress:
    """Prints after every so many requests how long they have taken."""
    began = time.monotonic()

    def tell(number: int) -> None:
        if number and number % every == 0:
            print(f"{number} requests in {time.monotonic() - began:.0f} s", flush=True)

    return tell
