"""Numbered things in sentences: one rank, or several. Knows nothing of what they are."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["is_or_are", "numbered"]

SHORTEST_SPAN = 3


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """``no rank``, ``rank 1``, ``ranks 1, 2``, ``ranks 1 to 4``; ``numbers`` in their order."""
    if not numbers:
        return f"no {noun}"
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    is_span = len(numbers) >= SHORTEST_SPAN and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{noun}s {numbers[0]} to {numbers[-1]}" if is_span else f"{noun}s {', '.join(map(str, numbers))}"


def is_or_are(numbers: Sequence[int]) -> str:
    """The verb that goes with :func:`numbered`."""
    return "are" if len(numbers) > 1 else "is"
