from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from triolet.core.step_news import MANY_OUTPUTS, NUM_TURNS, StepNews


class Loop:
    """An event loop that is turned by hand; each turn runs what was posted before it."""

    def __init__(self) -> None:
        self._posted: deque[Callable[[], Any]] = deque()
        self.has_posts = threading.Event()

    def post(self, callback: Callable[[], Any]) -> None:
        self._posted.append(callback)
        self.has_posts.set()

    def turn(self) -> None:
        for _ in range(len(self._posted)):
            self._posted.popleft()()

    @property
    def is_idle(self) -> bool:
        return not self._posted


class Device:
    """A thread that tells of steps with so many outputs, one after the other."""

    def __init__(self, news: StepNews, loop: Loop, steps: list[int]) -> None:
        self.num_told = 0
        self._news, self._loop, self._steps = news, loop, steps
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self._news.begin()
        for num_outputs in self._steps:
            self._news.tell(self._loop.post, num_outputs)
            self.num_told += 1
        self._news.end()

    def turn_to_end(self) -> None:
        while self._thread.is_alive():
            self._loop.turn()
            self._thread.join(0.001)


def test_it_goes_on_while_the_loop_has_not_heard_of_one_step() -> None:
    handed_on: list[None] = []
    loop, news = Loop(), StepNews(lambda: handed_on.append(None), has_spare_core=True)
    news.begin()
    news.tell(loop.post, 100)
    assert not handed_on
    loop.turn()
    news.end()
    assert len(handed_on) == 1


def test_it_waits_while_the_loop_has_not_heard_of_two() -> None:
    loop = Loop()
    device = Device(StepNews(lambda: None, has_spare_core=True), loop, [1, 1])
    loop.has_posts.wait()
    device._thread.join(0.05)
    assert device.num_told < 2
    device.turn_to_end()
    assert device.num_told == 2


@pytest.mark.parametrize("has_spare_core", [True, False])
def test_few_outputs_are_never_waited_for(has_spare_core: bool) -> None:
    loop, news = Loop(), StepNews(lambda: None, has_spare_core=has_spare_core)
    news.begin()
    news.tell(loop.post, MANY_OUTPUTS - 1)
    loop.turn()
    assert loop.is_idle
    news.end()


def test_many_outputs_have_their_turns_before_the_next_step_where_no_core_is_spare() -> None:
    handed_on: list[int] = []
    loop = Loop()
    num_turns = 0
    device = Device(StepNews(lambda: handed_on.append(num_turns), has_spare_core=False), loop, [MANY_OUTPUTS])
    loop.has_posts.wait()
    while device.num_told == 0 and num_turns < NUM_TURNS:
        loop.turn()
        num_turns += 1
    assert handed_on == [0]
    assert not loop.is_idle
    assert device.num_told == 0
    device.turn_to_end()
    assert device.num_told == 1


def test_any_number_of_steps_comes_to_an_end() -> None:
    loop = Loop()
    steps = [0, MANY_OUTPUTS, 1, 1, MANY_OUTPUTS, MANY_OUTPUTS, 0] * 3
    device = Device(StepNews(lambda: None, has_spare_core=False), loop, steps)
    device.turn_to_end()
    assert device.num_told == len(steps)
    assert loop.is_idle
