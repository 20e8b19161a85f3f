"""Requests made ready on the event loop or, where that takes long, in a thread beside it.

This module knows neither prompts nor grammars, only how long they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from triolet.errors import InvalidRequestError
from triolet.frontend.input_processor import GenerationParams, InputProcessor
from triolet.frontend.request_state import RequestState

__all__ = ["Preparation", "beside_the_loop", "written_length"]

LONG_PROMPT = 4096
"""Characters or token ids; above it, checking them takes long enough to be worth a thread."""
MAX_LONG = 4
"""Long prompts that are worked on at a time: a text of a megabyte takes 75 MB meanwhile."""
COMPILE_SECONDS = 30.0

T = TypeVar("T")
_LONG: RunVar[anyio.CapacityLimiter] = RunVar("triolet.long_prompts")


def written_length(*values: Any) -> int:
    """Characters and items of texts, mappings and lists of them, counted until they are long."""
    length = 0
    pending = list(values)
    while pending and length <= LONG_PROMPT:
        value = pending.pop()
        length += 1
        if isinstance(value, str):
            length += len(value)
        elif isinstance(value, Mapping):
            pending += value.keys()
            pending += value.values()
        elif isinstance(value, Sequence):
            pending += value
    return length


async def beside_the_loop(work: Callable[[], T], length: int) -> T:
    """``work()``, in a thread if what it works on has a ``length`` above :data:`LONG_PROMPT`, in its turn.

    Cancellation: stops waiting at once; what is under way in a thread goes on to its end and is dropped.
    """
    if length <= LONG_PROMPT:
        return work()
    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=_long_limiter())


def _long_limiter() -> anyio.CapacityLimiter:
    """That of the loop running here."""
    limiter = _LONG.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(MAX_LONG)
        _LONG.set(limiter)
    return limiter


class Preparation:
    """Runs the work of an :class:`InputProcessor`. Grammars are compiled one at a time, so that they leave
    threads and processors to other requests; what takes longer than ``compile_seconds`` is refused."""

    def __init__(self, *, compile_seconds: float = COMPILE_SECONDS) -> None:
        self._compile_seconds = compile_seconds
        self._compiling: anyio.CapacityLimiter | None = None  # made where there is a loop

    async def run(
        self,
        prepare: Callable[[InputProcessor], RequestState],
        inputs: InputProcessor,
        params: GenerationParams,
        length: int,
    ) -> RequestState:
        """``prepare(inputs)``, for parameters and a prompt of ``length`` characters or ids.

        Cancellation: stops waiting at once; what is under way in a thread goes on to its end and is dropped.
        Raises what ``prepare`` raises, and InvalidRequestError when its grammar takes too long.
        """
        if inputs.must_compile(params):
            return await self._compile(prepare, inputs)
        return await beside_the_loop(partial(prepare, inputs), length)

    async def _compile(
        self, prepare: Callable[[InputProcessor], RequestState], inputs: InputProcessor
    ) -> RequestState:
        if self._compiling is None:
            self._compiling = anyio.CapacityLimiter(1)
        try:
            with anyio.fail_after(self._compile_seconds):
                return await anyio.to_thread.run_sync(
                    prepare, inputs, abandon_on_cancel=True, limiter=self._compiling
                )
        except TimeoutError:
            raise InvalidRequestError(
                f"structured_outputs: not compiled within {self._compile_seconds:g} s; make it simpler, or "
                "send it again when less is compiled",
                param="structured_outputs",
            ) from None
