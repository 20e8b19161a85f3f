"""Fair shares between callers: whoever has been served least goes next.

Each caller has a virtual time, the tokens it has been served: those of a prompt when its request is taken,
those of the output as they come. The caller with the least goes next, its own requests first come, first
served. One who was away does not save up: its virtual time starts from that of the queue, which is where the
caller served last stood. This is start-time fair queuing (Goyal, Vin and Cheng, SIGCOMM 1996) by tokens whose
number is not known in advance, as in the virtual token counter of Sheng et al., "Fairness in Serving Large
Language Models" (OSDI 2024).

**Nobody waits for ever**: each request taken moves its caller on by one token at least, so that whoever waits
has the least after a finite number of them.

**Nobody gets far ahead**: of two callers who both have requests waiting, one has been served more than the
other by at most what its running requests come to. For when its last one was taken, it had the least.

This module knows nothing of priorities, blocks or steps.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from triolet.scheduling.sequence import Sequence

__all__ = ["FairQueue"]

MAX_AWAY = 1024
"""So many callers who have nothing here are remembered: leaving does not wipe out what one has had."""


@dataclass(slots=True)
class _Caller:
    virtual_time: int
    waiting: dict[int, Sequence] = field(default_factory=dict)
    num_taken: int = 0

    def place(self, key: str) -> tuple[int, int, str]:
        """Its place among those that have something waiting: the least goes next. ``key`` is its own."""
        return self.virtual_time, next(iter(self.waiting.values())).arrival, key


class FairQueue:
    """Sequences that wait, by the ``fairness_key`` of their requests.

    A sequence is added, then removed or taken; one taken is charged for and ends. Each of these takes time
    that grows with the logarithm of the number of callers; looking who is next takes none that grows.
    """

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._order: list[tuple[int, int, str]] = []  # places of the callers that have something waiting
        self._away: OrderedDict[str, int] = OrderedDict()
        self._virtual_time = 0
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and all that was taken has ended: then there is nothing to remember."""
        return not self._callers

    def __iter__(self) -> Iterator[Sequence]:
        """All that wait, in the order in which they would be taken if taking cost nothing."""
        for _, _, key in self._order:
            yield from self._callers[key].waiting.values()

    def virtual_times(self) -> dict[str, int]:
        """Of each caller that has something waiting."""
        return {key: virtual_time for virtual_time, _, key in self._order}

    def add(self, sequence: Sequence) -> None:
        key = sequence.request.options.fairness_key
        caller = self._callers.get(key)
        if caller is None:
            caller = self._callers[key] = _Caller(self._away.pop(key, 0))
        self._num_waiting += 1
        if caller.waiting:
            caller.waiting[sequence.request.request_id] = sequence
            return
        caller.virtual_time = max(caller.virtual_time, self._virtual_time)
        caller.waiting[sequence.request.request_id] = sequence
        insort(self._order, caller.place(key))

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out for good."""
        self._withdraw(sequence)
        self._forget_if_gone(sequence.request.options.fairness_key)

    def take(self, sequence: Sequence) -> None:
        """A waiting sequence is going to be served."""
        caller = self._withdraw(sequence)
        caller.num_taken += 1
        self._virtual_time = max(self._virtual_time, caller.virtual_time)

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """So many tokens have been served to the caller of a sequence that was taken."""
        key = sequence.request.options.fairness_key
        caller = self._callers[key]
        if not caller.waiting:
            caller.virtual_time += num_tokens
            return
        self._take_place_from(key, caller)
        caller.virtual_time += num_tokens
        insort(self._order, caller.place(key))

    def end(self, sequence: Sequence) -> None:
        """A sequence that was taken has ended."""
        key = sequence.request.options.fairness_key
        self._callers[key].num_taken -= 1
        self._forget_if_gone(key)

    def _withdraw(self, sequence: Sequence) -> _Caller:
        key = sequence.request.options.fairness_key
        caller = self._callers[key]
        self._take_place_from(key, caller)
        del caller.waiting[sequence.request.request_id]
        if caller.waiting:
            insort(self._order, caller.place(key))
        self._num_waiting -= 1
        return caller

    def _take_place_from(self, key: str, caller: _Caller) -> None:
        del self._order[bisect_left(self._order, caller.place(key))]

    def _forget_if_gone(self, key: str) -> None:
        caller = self._callers[key]
        if caller.waiting or caller.num_taken:
            return
        del self._callers[key]
        if not self._callers:
            self._away.clear()
            self._virtual_time = 0
        elif caller.virtual_time > self._virtual_time:
            self._away[key] = caller.virtual_time
            if len(self._away) > MAX_AWAY:
                self._away.popitem(last=False)
