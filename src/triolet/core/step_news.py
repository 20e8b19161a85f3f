"""StepNews: how the event loop is told of each step, and how long the device thread waits for it.

The device thread tells of a step and goes on, unless the loop has not heard of the one before: it may be late
with its turn, but not left behind with tokens that nobody wants any more. Where the threads that compute take
all cores there are, and there are few, the loop would have to wait until one of them loses its core, which
the others then wait for: so it is let write what a step gave before they take the cores again.

This module knows neither an engine core nor what is done with the news.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from triolet.core.loop import LoopPoster

__all__ = ["FEW_CORES", "MANY_OUTPUTS", "StepNews"]

FEW_CORES = 2
"""With more, one that the loop takes is a small part of them; up to so many it is waited for."""
MANY_OUTPUTS = 4
"""Fewer are written in less time than it takes two threads to hand over to each other."""
NUM_TURNS = 4
"""Turns of the loop until outputs have been written: those who wait for them wake one after the other."""


class StepNews:
    """``hand_on`` is called on the loop after each step; ``has_spare_core``: besides those that compute."""

    def __init__(self, hand_on: Callable[[], None], *, has_spare_core: bool) -> None:
        self._hand_on = hand_on
        self._has_spare_core = has_spare_core
        self._heard: SimpleQueue[None] = SimpleQueue()

    def begin(self) -> None:
        """On the device thread, before its first step."""
        self._heard.put(None)

    def tell(self, post: LoopPoster, num_outputs: int) -> None:
        """On the device thread, after each step, which gave so many outputs."""
        is_waited_for = num_outputs >= MANY_OUTPUTS and not self._has_spare_core
        post(partial(self._hear, post, NUM_TURNS if is_waited_for else 0))
        self._heard.get()
        if is_waited_for:
            self._heard.get()
            self._heard.put(None)

    def end(self) -> None:
        """On the device thread, after its last step: all have been heard of."""
        self._heard.get()

    def _hear(self, post: LoopPoster, num_turns: int) -> None:
        """On the loop."""
        if not num_turns:
            self._heard.put(None)
        self._hand_on()
        if num_turns:
            self._let_pass(post, num_turns)

    def _let_pass(self, post: LoopPoster, num_turns: int) -> None:
        if num_turns:
            post(partial(self._let_pass, post, num_turns - 1))
        else:
            self._heard.put(None)
