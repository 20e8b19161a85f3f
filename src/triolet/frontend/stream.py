"""RequestStream: one request as its caller holds it.

Leaving it, in whatever way, ends the request: reaching the end, ``async with``, closing the iterator,
cancellation, or merely letting it go.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import anyio

from triolet.core.loop import LoopPoster
from triolet.frontend.collector import RequestOutputCollector
from triolet.request import RequestOutput

__all__ = ["LazyRequestStream", "RequestStream"]


class RequestStream:
    """An asynchronous iterator over a request's outputs; the last one ``is_finished``.

    Raises EngineGenerateError where this request failed, InvalidRequestError where its own options left it no
    token to choose from, EngineDeadError where the engine failed, and anyio.BusyResourceError in a task that
    asks while another one is waiting.

    Cancellation: a consumer that is cancelled while waiting ends the request.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        collector: RequestOutputCollector,
        on_abort: Callable[[], None],
        post: LoopPoster,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self._collector = collector
        self._on_abort = on_abort
        self._post = post
        self._is_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_ended:
            raise StopAsyncIteration
        try:
            output = await self._collector.get()
        except anyio.BusyResourceError:
            raise  # the request is another task's
        except BaseException:
            self.abort()
            raise
        self._is_ended = output.is_finished
        return output

    async def wait_ready(self, until: float = math.inf) -> bool:
        """Return True once ``anext`` would not have to wait, False at ``until`` (``anyio.current_time()``).

        Being cancelled here does not end the request.
        """
        return self._is_ended or await self._collector.wait_ready(until)

    def abort(self) -> None:
        """End the request now, if it has not ended; never blocks. Nothing more is yielded."""
        if not self._is_ended:
            self._is_ended = True
            self._on_abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abort()

    def __del__(self) -> None:
        # The safety net for a generator that was never started: its ``finally`` never runs. The collector
        # of cyclic garbage runs on any thread, so the loop is asked to do it.
        if not self._is_ended:
            self._post(self._on_abort)


class LazyRequestStream:
    """What ``Engine.generate`` returns: submits on the first ``anext``, then yields the request's outputs.

    Not a generator on purpose: breaking out of a loop over it ends the request at once, on every event loop,
    where an abandoned asynchronous generator would be finalised some time later, or with a warning.
    """

    def __init__(self, submit: Callable[[], Awaitable[RequestStream]]) -> None:
        self._submit = submit
        self._stream: RequestStream | None = None
        self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._is_closed:
            raise StopAsyncIteration
        if self._stream is None:
            self._stream = await self._submit()
            if self._is_closed:  # by another task, while this one was tokenising
                self._stream.abort()
        return await anext(self._stream)

    async def aclose(self) -> None:
        """End the request, if it has not ended; for ``contextlib.aclosing``."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.abort()
