"""How likely a guess is right, by how much of the text before it is the same at the place it is taken from.

That tells more than anything else: of guesses after one equal token a quarter is right, after twenty nearly
all, whatever the text. The guess after a right one is as sure as one whose match is longer by one token.
This module knows nothing of sequences, of steps or of what a guess costs.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Self

from triolet.scheduling.drafting import MAX_MATCH

__all__ = ["Acceptance"]

MATCHES = (1, 2, 3, 4, 6, 10, 20)
"""The shortest match of each class."""
FIRST_CHANCES = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.97)
"""Measured with two small models on chats, texts rewritten, code and JSON, greedy and at temperature 0.8."""
FIRST_CHANCE_OF_MODEL = 0.8
RETURN_RATE = 1 / 256

_CLASSES = tuple(max(0, bisect_right(MATCHES, length) - 1) for length in range(MAX_MATCH + 1))
_ONE_CLASS = (0,) * (MAX_MATCH + 1)


class Acceptance:
    """Running shares of right guesses, 0 to 1, in classes of matches."""

    __slots__ = ("_chances", "_classes", "_first_chances")

    def __init__(self, *, is_looked_up: bool) -> None:
        """Guesses that are not looked up, but made by a model, are all alike."""
        self._classes = _CLASSES if is_looked_up else _ONE_CLASS
        self._first_chances = FIRST_CHANCES if is_looked_up else (FIRST_CHANCE_OF_MODEL,)
        self._chances = list(self._first_chances)

    def copy(self) -> Self:
        twin = type(self).__new__(type(self))
        twin._classes, twin._first_chances = self._classes, self._first_chances
        twin._chances = list(self._chances)
        return twin

    def length(self, num_matched: int, limit: int, break_even: float) -> int:
        """How many guesses in a row, up to ``limit``, are each kept with a chance of at least ``break_even``.

        ``num_matched``: tokens of the match before the first of them.
        """
        chance = 1.0
        for index in range(limit):
            chance *= self._chances[self._class_of(num_matched + index)]
            if chance < break_even:
                return index
        return limit

    def record(self, num_matched: int, num_proposed: int, num_accepted: int, rate: float) -> None:
        """So many guesses in a row were right, and the next, if there was one, wrong."""
        for index in range(min(num_accepted + 1, num_proposed)):
            number = self._class_of(num_matched + index)
            self._chances[number] += rate * ((index < num_accepted) - self._chances[number])

    def decline(self, num_matched: int) -> None:
        """Such a guess was not worth it: forget a little of why, so that one is tried again some day."""
        number = self._class_of(num_matched)
        self._chances[number] += RETURN_RATE * (self._first_chances[number] - self._chances[number])

    def _class_of(self, num_matched: int) -> int:
        return self._classes[min(num_matched, MAX_MATCH)]
