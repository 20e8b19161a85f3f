"""The requests that wait, in the order in which they are to be admitted.

**fcfs**: callers get fair shares (see :mod:`triolet.scheduling.fair_queue`), the requests of one caller are
first come, first served. **priority**: the lower priority goes first, and fair shares hold among the requests
of one priority. Sequences that were thrown out go before the others of their priority, in order of arrival.

**Nobody waits for ever.** Under priority, requests that are passed over ``MAX_PASSED_OVER`` times by better
ones get a turn: one of their priority is taken, and counts from then on as more urgent than all, so that it
is not thrown out for those that it has overtaken. Within one priority, fair shares do.

This module knows nothing of slots, blocks or steps.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import filterfalse, takewhile

from triolet.args import SchedulingPolicy
from triolet.request import MAX_PRIORITY
from triolet.scheduling.fair_queue import FairQueue
from triolet.scheduling.sequence import Sequence

__all__ = ["MAX_PASSED_OVER", "MOST_URGENT", "WaitingQueue"]

MAX_PASSED_OVER = 32
MOST_URGENT = -MAX_PRIORITY - 1


@dataclass(slots=True)
class _Level:
    """What waits at one priority. ``served_at``: how many were taken of all when one of these last was."""

    priority: int
    served_at: int
    returned: list[Sequence] = field(default_factory=list)
    newcomers: FairQueue = field(default_factory=FairQueue)

    def __len__(self) -> int:
        return len(self.returned) + len(self.newcomers)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.returned
        yield from self.newcomers


class WaitingQueue:
    """Waiting sequences. One that is added is removed, or taken; one taken is put back or ends.

    The levels that have something waiting are kept in order, so that looking who is next takes no time that
    grows with their number, and whatever changes them a time that grows with its logarithm.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy
        self._waiting: dict[int, Sequence] = {}
        self._levels: dict[int, _Level] = {}
        self._by_priority: list[int] = []  # priorities of the levels that have something waiting
        self._by_service: list[tuple[int, int]] = []  # the same, those first that were served longest ago
        self._num_prompt_tokens = 0
        self._num_added = 0
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in the order in which they would be taken if that changed nothing for the others."""
        for level in self._levels_in_order():
            yield from level

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens in the prompts of all that wait."""
        return self._num_prompt_tokens

    @property
    def num_returned(self) -> int:
        """How many of them have begun and were thrown out."""
        return sum(len(level.returned) for level in self._levels.values())

    def next(self, held_back: Container[int] = (), *, returned_only: bool = False) -> Sequence | None:
        """The sequence to admit next, of those whose request is not held back; None if there is none."""
        return _first(self._levels_in_order(), held_back, returned_only=returned_only)

    def most_urgent(self, *, returned_only: bool = False) -> Sequence | None:
        """The first of those with the best priority, whoever's turn it is; None if there is none."""
        levels = (self._levels[priority] for priority in self._by_priority)
        return _first(levels, returned_only=returned_only)

    def virtual_times(self, priority: int = 0) -> dict[str, int]:
        """Tokens served to each caller that waits at this priority, for checks."""
        level = self._levels.get(priority)
        return {} if level is None else level.newcomers.virtual_times()

    def add(self, sequence: Sequence) -> None:
        """A new request; its sequence is given its arrival and its priority."""
        sequence.arrival = self._num_added
        sequence.priority = self._priority_of(sequence)
        self._num_added += 1
        self._level_to_wait_in(sequence).newcomers.add(sequence)
        self._enter(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """One that was taken has been thrown out and waits again."""
        insort(self._level_to_wait_in(sequence).returned, sequence, key=lambda item: item.arrival)
        self._enter(sequence)

    def remove(self, request_id: int) -> Sequence | None:
        """Take a waiting sequence out for good; None if it does not wait."""
        sequence = self._waiting.get(request_id)
        if sequence is not None:
            self._leave(sequence)
            level = self._levels[sequence.priority]
            self._take_place_from(level)
            if sequence in level.returned:
                level.returned.remove(sequence)
                self.end(sequence)
            else:
                level.newcomers.remove(sequence)
            if level:
                self._give_place(level)
            self._forget_if_idle(level)
        return sequence

    def take(self, sequence: Sequence, num_tokens: int) -> None:
        """Admit a waiting sequence; a newcomer's caller is charged ``num_tokens`` for its prompt."""
        self._leave(sequence)
        level = self._levels[sequence.priority]
        if self._is_its_turn(level):
            sequence.priority = MOST_URGENT
        self._take_place_from(level)
        self._num_taken += 1
        level.served_at = self._num_taken
        if sequence in level.returned:
            level.returned.remove(sequence)
            self._forget_if_idle(level)
        else:
            level.newcomers.take(sequence)
            level.newcomers.charge(sequence, num_tokens)
        if level:
            self._give_place(level)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """So many tokens of output have come of a sequence that was taken."""
        self._levels[self._priority_of(sequence)].newcomers.charge(sequence, num_tokens)

    def end(self, sequence: Sequence) -> None:
        """A sequence that was taken has ended."""
        level = self._levels[self._priority_of(sequence)]
        level.newcomers.end(sequence)
        self._forget_if_idle(level)

    def _enter(self, sequence: Sequence) -> None:
        self._waiting[sequence.request.request_id] = sequence
        self._num_prompt_tokens += len(sequence.request.prompt_token_ids)

    def _leave(self, sequence: Sequence) -> None:
        del self._waiting[sequence.request.request_id]
        self._num_prompt_tokens -= len(sequence.request.prompt_token_ids)

    def _priority_of(self, sequence: Sequence) -> int:
        """The priority at which its caller is charged, whatever its own has become since."""
        return sequence.request.options.priority if self._policy == "priority" else 0

    def _level_to_wait_in(self, sequence: Sequence) -> _Level:
        priority = sequence.priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level(priority, 0)
        if not level:
            level.served_at = self._num_taken
            self._give_place(level)
        return level

    def _give_place(self, level: _Level) -> None:
        insort(self._by_priority, level.priority)
        insort(self._by_service, (level.served_at, level.priority))

    def _take_place_from(self, level: _Level) -> None:
        del self._by_priority[bisect_left(self._by_priority, level.priority)]
        del self._by_service[bisect_left(self._by_service, (level.served_at, level.priority))]

    def _forget_if_idle(self, level: _Level) -> None:
        if not level.returned and level.newcomers.is_idle:
            self._levels.pop(level.priority, None)

    def _levels_in_order(self) -> Iterator[_Level]:
        """Those that are overdue, then the others by priority; changing the queue ends the iteration."""
        by_service = map(self._levels.__getitem__, (priority for _, priority in self._by_service))
        yield from takewhile(self._is_overdue, by_service)
        by_priority = map(self._levels.__getitem__, self._by_priority)
        yield from filterfalse(self._is_overdue, by_priority)

    def _is_overdue(self, level: _Level) -> bool:
        return self._num_taken - level.served_at >= MAX_PASSED_OVER

    def _is_its_turn(self, level: _Level) -> bool:
        return self._is_overdue(level) and self._by_priority[0] < level.priority


def _first(
    levels: Iterable[_Level], held_back: Container[int] = (), *, returned_only: bool = False
) -> Sequence | None:
    for level in levels:
        for sequence in level.returned if returned_only else level:
            if sequence.request.request_id not in held_back:
                return sequence
    return None
