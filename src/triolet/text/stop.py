"""Stop strings: text comes in pieces, and what goes out ends exactly where a stop string begins.

Of several stops, the occurrence that is complete first wins, since a stream must act on it then; of those
complete at the same character, the one that begins first. Cutting the text into other pieces changes
nothing. It knows neither tokens nor requests.

The matcher is the automaton of Aho and Corasick ("Efficient string matching", 1975): its state is the
longest end of the text so far that begins a stop, which is exactly what must be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from triolet.errors import InvalidRequestError

__all__ = ["StopMatcher"]

MAX_STOP_CHARACTERS = 16_384


class StopMatcher:
    """Cuts text at the first stop string. ``matched`` is that string once it has been seen.

    ``is_included`` keeps the stop string itself in the text. Raises :class:`InvalidRequestError` for an
    empty stop, or stops of more than 16,384 characters together.
    """

    def __init__(self, stops: Sequence[str], *, is_included: bool = False) -> None:
        _check(stops)
        self._is_included = is_included
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._automaton = _Automaton(stops)
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """The text that is safe to show after ``text``; after a match, nothing more ever comes."""
        if self.matched is not None:
            return ""
        if self._state == 0 and self._first_characters.isdisjoint(text):
            return text
        for position, character in enumerate(text):
            self._state = self._automaton.next_state(self._state, character)
            if (stop := self._automaton.match(self._state)) is not None:
                return self._cut(self._held + text[: position + 1], stop)
        return self._hold_back(self._held + text)

    def flush(self) -> str:
        """What was held back and turned out to be no stop; call it at the end of the text."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _cut(self, text: str, stop: str) -> str:
        self.matched = stop
        self._held = ""
        return text if self._is_included else text[: len(text) - len(stop)]

    def _hold_back(self, text: str) -> str:
        border = len(text) - self._automaton.depth(self._state)
        self._held = text[border:]
        return text[:border]


class _Automaton:
    """States are the beginnings of the stops, 0 the empty one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._edges: list[dict[str, int]] = [{}]
        self._depths = [0]
        self._fallbacks = [0]
        self._matches: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def next_state(self, state: int, character: str) -> int:
        """The longest end of the text that begins a stop, after one more character."""
        while (target := self._edges[state].get(character)) is None:
            if state == 0:
                return 0
            state = self._fallbacks[state]
        return target

    def match(self, state: int) -> str | None:
        """The longest stop that the text ends with."""
        return self._matches[state]

    def depth(self, state: int) -> int:
        """Number of characters in the state."""
        return self._depths[state]

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            target = self._edges[state].get(character)
            if target is None:
                target = len(self._edges)
                self._edges[state][character] = target
                self._edges.append({})
                self._depths.append(self._depths[state] + 1)
                self._fallbacks.append(0)
                self._matches.append(None)
            state = target
        self._matches[state] = stop

    def _link(self) -> None:
        """Set each state's fallback, the longest shorter end of it that begins a stop; breadth first."""
        queue = deque(self._edges[0].values())
        while queue:
            state = queue.popleft()
            for character, target in self._edges[state].items():
                fallback = self.next_state(self._fallbacks[state], character)
                self._fallbacks[target] = fallback
                self._matches[target] = self._matches[target] or self._matches[fallback]
                queue.append(target)


def _check(stops: Sequence[str]) -> None:
    if any(not stop for stop in stops):
        raise InvalidRequestError("stop: a stop string must not be empty", param="stop")
    if (size := sum(map(len, stops))) > MAX_STOP_CHARACTERS:
        raise InvalidRequestError(
            f"stop: the stop strings may have {MAX_STOP_CHARACTERS:,} characters together, got {size:,}",
            param="stop",
        )
