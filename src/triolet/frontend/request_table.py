"""RequestTable: the requests under way in an asynchronous front end, each with its mailbox.

Joins the pure :class:`OutputProcessor` to the streams that callers hold and to the engine client.
All calls are made on the loop's thread and none of them blocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import anyio

from triolet.cluster.client import EngineClient
from triolet.core.loop import LoopPoster
from triolet.errors import EngineDeadError, EngineGenerateError
from triolet.frontend.collector import RequestOutputCollector
from triolet.frontend.output_processor import FrontendStatistics, OutputProcessor, ProcessedOutput
from triolet.frontend.request_state import RequestState
from triolet.frontend.stream import RequestStream
from triolet.request import TokenOutput

__all__ = ["RequestTable"]


class RequestTable:
    """Every request from its submission to its end, by internal id."""

    def __init__(self, client: EngineClient, post: LoopPoster, statistics: FrontendStatistics) -> None:
        self._client = client
        self._post = post
        self._outputs = OutputProcessor(statistics)
        self._collectors: dict[int, RequestOutputCollector] = {}
        self._request_ended = anyio.Event()
        self._death: BaseException | None = None

    @property
    def num_requests(self) -> int:
        return self._outputs.num_requests

    def add(self, state: RequestState) -> RequestStream:
        """Send a request to the core and return its stream. Raises what the core refuses it with."""
        internal_id = state.request.request_id
        collector = RequestOutputCollector(state.kind)
        self._collectors[internal_id] = collector
        self._outputs.add(state)  # before it is sent, so that no output can come too early
        try:
            self._client.add(state.request)
        except BaseException:
            self._outputs.discard(internal_id)
            del self._collectors[internal_id]
            raise
        on_abort = partial(self.abort, internal_id)
        token_ids = state.request.prompt_token_ids
        return RequestStream(state.request_id, token_ids, collector, on_abort, self._post)

    def process(self, outputs: Sequence[TokenOutput]) -> None:
        """Turn token outputs into request outputs and put them into their mailboxes."""
        for item in self._outputs.process(outputs, time.monotonic()):
            if item.is_stopped_here:
                self._client.abort(item.state.request.request_id)
            self._deliver(item)

    def abort(self, internal_id: int) -> None:
        """End a request with what it has so far; nothing happens if it has ended."""
        ended = self._outputs.abort(internal_id, time.monotonic())
        if ended is not None:
            self._client.abort(internal_id)
            self._deliver(ended)

    def abort_all(self) -> None:
        """End every request with what it has so far."""
        for internal_id in list(self._collectors):
            self.abort(internal_id)

    def fail_all(self, death: BaseException) -> None:
        """End every request with EngineDeadError; the core is not told, for it is dead."""
        self._death = death
        for item in self._outputs.fail_all(str(death), time.monotonic()):
            self._deliver(item)

    async def wait_idle(self) -> None:
        """Return once no request is under way."""
        while self.num_requests:
            await self._request_ended.wait()

    def _deliver(self, item: ProcessedOutput) -> None:
        internal_id = item.state.request.request_id
        collector = self._collectors[internal_id]
        if item.error is None:
            collector.put(item.output)
        else:
            collector.put_error(self._error(item.error))
        if item.output.is_finished:
            del self._collectors[internal_id]
            self._request_ended.set()
            self._request_ended = anyio.Event()

    def _error(self, text: str) -> Exception:
        if self._death is None:
            return EngineGenerateError(f"the request failed in the engine: {text}")
        error = EngineDeadError(f"the engine died: {text}")
        error.__cause__ = self._death
        return error
