"""RequestTable: the requests under way in an asynchronous front end, each with its mailbox.

Joins the pure :class:`OutputProcessor` to the streams that callers hold and to the engine client.
All calls are made on the loop's thread and none of them blocks; the one task handles outputs in chunks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Sequence
from functools import partial

import anyio
import anyio.lowlevel

from triolet.cluster.client import EngineClient
from triolet.core.loop import LoopPoster
from triolet.errors import EngineDeadError, RequestError, UnreadOutputError
from triolet.frontend.collector import RequestOutputCollector
from triolet.frontend.output_processor import OutputProcessor, ProcessedOutput
from triolet.frontend.request_state import RequestState
from triolet.frontend.stream import RequestStream
from triolet.request import TokenOutput
from triolet.sampling_params import RequestOutputKind
from triolet.statistics import FrontendStatistics

__all__ = ["RequestTable"]

OUTPUT_CHUNK = 128  # outputs handled before other tasks get their turn


class RequestTable:
    """Every request from its submission to its end, with its mailbox.

    One whose mailbox holds more than ``max_unread_bytes`` is ended.
    """

    def __init__(
        self,
        client: EngineClient,
        post: LoopPoster,
        statistics: FrontendStatistics,
        *,
        max_unread_bytes: float = math.inf,
    ) -> None:
        self._client = client
        self._post = post
        self._max_unread_bytes = max_unread_bytes
        self._outputs = OutputProcessor(statistics)
        self._collectors: dict[RequestState, RequestOutputCollector] = {}
        self._request_ended = anyio.Event()

    @property
    def num_requests(self) -> int:
        return self._outputs.num_requests

    def add(self, state: RequestState) -> RequestStream:
        """Send a request to the core and return its stream. Raises what the core refuses it with.

        All of its core requests are taken in or none is.
        """
        collector = RequestOutputCollector(state.head.kind)
        self._collectors[state] = collector
        self._outputs.add(state)  # before it is sent, so that no output can come too early
        try:
            self._client.add(*state.requests)
        except BaseException:
            self._outputs.discard(state)
            del self._collectors[state]
            raise
        on_abort = partial(self.abort, state)
        head = state.head
        return RequestStream(head.request_id, head.prompt_token_ids, collector, on_abort, self._post)

    async def handle_outputs(self) -> None:
        """The output-handler task: token ids → text → mailboxes, until the client has stopped."""
        while outputs := await self._client.get_outputs():
            for start in range(0, len(outputs), OUTPUT_CHUNK):
                if start:
                    await anyio.lowlevel.checkpoint()
                self.process(outputs[start : start + OUTPUT_CHUNK])
            del outputs  # or the last ones stay alive as long as an engine is idle

    def process(self, outputs: Sequence[TokenOutput]) -> None:
        """Turn token outputs into request outputs and put them into their mailboxes."""
        for item in self._outputs.process(outputs, time.monotonic()):
            self._obey(item)
            self._deliver(item)

    def abort(self, state: RequestState) -> None:
        """End a request with what it has so far; nothing happens if it has ended."""
        ended = self._outputs.abort(state, time.monotonic())
        if ended is not None:
            self._obey(ended)
            self._deliver(ended)

    def abort_ids(self, request_ids: Container[str]) -> None:
        """End the requests that their callers know by these ids."""
        for state in [state for state in self._collectors if state.head.request_id in request_ids]:
            self.abort(state)

    def abort_all(self) -> None:
        """End every request with what it has so far."""
        for state in list(self._collectors):
            self.abort(state)

    def fail_all(self, death: BaseException) -> None:
        """End every request with EngineDeadError; the core is not told, for it is dead."""
        for item in self._outputs.fail_all(partial(_dead_error, death), time.monotonic()):
            self._deliver(item)

    async def wait_idle(self) -> None:
        """Return once no request is under way."""
        while self.num_requests:
            await self._request_ended.wait()

    def _obey(self, item: ProcessedOutput) -> None:
        """Tell the core what it has to be told; a request that it then refuses to go on with has failed."""
        for core_id in item.orders.aborts:
            self._client.abort(core_id)
        if not item.orders.additions:
            return
        try:
            self._client.add(*item.orders.additions)
        except RequestError as exc:
            failed = self._outputs.fail(item.state, exc.with_traceback(None), time.monotonic())
            self._obey(failed)
            self._deliver(failed)

    def _deliver(self, item: ProcessedOutput) -> None:
        if item.output is None:
            return
        collector = self._collectors[item.state]
        is_behind = False
        if item.error is None:
            is_behind = collector.put(item.output)
        else:
            collector.put_error(item.error)
        if item.output.is_finished:
            del self._collectors[item.state]
            self._request_ended.set()
            self._request_ended = anyio.Event()
        elif is_behind and item.state.head.kind is RequestOutputKind.DELTA and not item.state.is_finished:
            # One that is finished has failed in the same step, which is told next.
            self._check_reader(item.state, collector.num_unread_bytes)

    def _check_reader(self, state: RequestState, num_unread_bytes: int) -> None:
        """End a request of which too much is unread: the rest would be kept for as long as it is not read."""
        if num_unread_bytes <= self._max_unread_bytes:
            return
        error = UnreadOutputError(
            f"The answer was read too slowly: about {num_unread_bytes} bytes of it were waiting "
            f"(--max-unread-bytes {self._max_unread_bytes}). Read faster, or ask for fewer logprobs."
        )
        failed = self._outputs.fail(state, error, time.monotonic())
        self._obey(failed)
        self._deliver(failed)


def _dead_error(death: BaseException) -> EngineDeadError:
    error = EngineDeadError(f"the engine died: {death}")
    error.__cause__ = death
    return error
