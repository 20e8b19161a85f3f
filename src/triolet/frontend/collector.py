"""RequestOutputCollector: the one-slot mailbox between the output handler and a request's consumer.

The producer never waits. A consumer that is slow finds one merged output instead of a queue, so a request
never holds more than its own answer; how much that is the producer may ask, and end the request.

This module knows nothing of engines.
"""

from __future__ import annotations

import math

from triolet.core.loop import Wakeup
from triolet.request import CompletionOutput, RequestOutput
from triolet.sampling_params import RequestOutputKind

__all__ = ["RequestOutputCollector"]


LOGPROB_BYTES = 64
"""About what a log-probability with its token takes, here and in an event."""


class RequestOutputCollector:
    """Holds the newest output of one request; for one producer and one consumer on one loop."""

    def __init__(self, kind: RequestOutputKind) -> None:
        self._kind = kind
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._arrived = Wakeup()

    def put(self, output: RequestOutput) -> bool:
        """Leave an output; True if one that had not been taken yet is merged with it."""
        is_merged = self._output is not None
        if self._output is not None:
            output = _joined(self._output, output, is_delta=self._kind is RequestOutputKind.DELTA)
        self._output = output
        self._arrived.set()
        return is_merged

    @property
    def num_unread_bytes(self) -> int:
        """About how much there is that the consumer has not taken."""
        return 0 if self._output is None else sum(map(_num_bytes, self._output.outputs))

    def put_error(self, error: Exception) -> None:
        """End the request with an exception, raised in the consumer once it has taken what came before."""
        self._error = error
        self._arrived.set()

    async def get(self) -> RequestOutput:
        """The next output; waits for one. Raises what :meth:`put_error` was given, once."""
        await self.wait_ready()
        if self._output is None:
            error, self._error = self._error, None
            assert error is not None, "there is an output or an error"
            try:
                raise error
            finally:
                del error  # or exception and traceback would keep each other alive
        output, self._output = self._output, None
        return output

    async def wait_ready(self, until: float = math.inf) -> bool:
        """Return True once :meth:`get` would not have to wait, False at the time ``until``.

        Being cancelled here loses nothing.
        """
        while self._output is None and self._error is None:
            if not await self._arrived.wait(until):
                return False
        return True


def _num_bytes(completion: CompletionOutput) -> int:
    num_logprobs = sum(len(position.token_ids) for position in completion.logprobs or ())
    return len(completion.text) + LOGPROB_BYTES * num_logprobs


def _joined(first: RequestOutput, second: RequestOutput, *, is_delta: bool) -> RequestOutput:
    """Both in one. A continuation that the second has no news of is as it was in the first."""
    by_index = {completion.index: completion for completion in first.outputs}
    for completion in second.outputs:
        earlier = by_index.get(completion.index)
        if is_delta and earlier is not None:
            completion = _appended(earlier, completion)
        by_index[completion.index] = completion
    second.outputs = [by_index[index] for index in sorted(by_index)]
    if second.prompt_logprobs is None:
        second.prompt_logprobs = first.prompt_logprobs
    return second


def _appended(first: CompletionOutput, second: CompletionOutput) -> CompletionOutput:
    second.text = first.text + second.text
    second.token_ids = first.token_ids + second.token_ids
    if first.logprobs is not None:
        second.logprobs = first.logprobs + (second.logprobs or [])
    return second
