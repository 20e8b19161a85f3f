"""Timers that share one alarm: all are rung at their time, and the loop is told of as few as possible."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from triolet.core.timers import Timers


class Loop:
    """A clock, and the alarms that were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.alarms: list[tuple[float, int, Callable[[], None]]] = []
        self.num_alarms = 0
        self.timers = Timers(lambda: self.now, self._set_alarm)

    def _set_alarm(self, at: float, callback: Callable[[], None]) -> None:
        self.num_alarms += 1
        heapq.heappush(self.alarms, (at, self.num_alarms, callback))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.alarms and self.alarms[0][0] <= end:
            at, _, callback = heapq.heappop(self.alarms)
            self.now = max(self.now, at)
            callback()
        self.now = end


class Bell:
    """Notes when it was rung, and for what time."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.rings: list[tuple[float, float]] = []

    def ring(self, at: float) -> None:
        self.rings.append((at, self._loop.now))


def test_a_later_one_needs_no_alarm_of_its_own_and_an_earlier_one_does() -> None:
    loop = Loop()
    bells = [Bell(loop) for _ in range(3)]
    for at, bell in zip((5, 7, 3), bells, strict=True):
        loop.timers.ring_at(at, bell)
    assert [at for at, _, _ in sorted(loop.alarms)] == [3, 5]
    loop.advance(10)
    assert [bell.rings for bell in bells] == [[(5, 5)], [(7, 7)], [(3, 3)]]


def test_those_that_have_gone_wake_nobody() -> None:
    loop = Loop()
    last = Bell(loop)
    for index in range(100):
        loop.timers.ring_at(15 + index, Bell(loop))
    loop.timers.ring_at(200, last)
    loop.advance(300)
    assert last.rings == [(200, 200)]
    assert loop.num_alarms <= 2


def test_one_that_is_rung_may_ask_to_be_rung_again() -> None:
    loop = Loop()

    class Again(Bell):
        def ring(self, at: float) -> None:
            super().ring(at)
            if len(self.rings) < 4:
                loop.timers.ring_at(at + 2, self)

    bell = Again(loop)
    loop.timers.ring_at(1, bell)
    loop.advance(20)
    assert bell.rings == [(1, 1), (3, 3), (5, 5), (7, 7)]


def test_an_alarm_that_comes_a_little_early_is_on_time() -> None:
    loop = Loop()
    bell = Bell(loop)
    loop.timers.ring_at(1, bell)
    (_, _, callback) = loop.alarms.pop()
    callback()
    assert bell.rings == [(1, 0)]


def test_one_for_whom_an_alarm_is_too_early_is_rung_by_the_next() -> None:
    loop = Loop()

    class Punctual(Bell):
        def ring(self, at: float) -> None:
            super().ring(at)
            assert len(self.rings) < 3, "time does not pass meanwhile"
            if self._loop.now < at:
                self._loop.timers.ring_at(at, self)

    bell = Punctual(loop)
    loop.timers.ring_at(1, bell)
    (_, _, callback) = loop.alarms.pop()
    callback()
    assert bell.rings == [(1, 0)]
    loop.advance(2)
    assert bell.rings == [(1, 0), (1, 1)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "go", "pass"]), st.integers(0, 9), st.integers(0, 4)
        ),
        max_size=40,
    )
)  # fmt: skip
def test_everybody_who_is_there_is_rung_once_at_their_time(steps: list[tuple[str, int, int]]) -> None:
    loop = Loop()
    bells: dict[int, Bell] = {}
    asked: dict[int, list[float]] = {}
    for step, seconds, number in steps:
        if step == "ask":
            loop.timers.ring_at(loop.now + seconds, bells.setdefault(number, Bell(loop)))
            asked.setdefault(number, []).append(loop.now + seconds)
        elif step == "go":
            bells.pop(number, None)
            asked.pop(number, None)
        else:
            loop.advance(seconds)
    loop.advance(100)
    for number, bell in bells.items():
        assert bell.rings == [(at, at) for at in sorted(asked[number])]
