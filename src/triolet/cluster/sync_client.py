"""SyncClient: engine cores in other processes for a caller without an event loop; a ``StepCore``.

An engine client runs on a loop in a thread of its own; each call here is handed to that loop and waited for.
Calls are carried out in the order in which they were made, whatever became of those who waited for them, so
an interrupt in the middle of one leaves nothing that :meth:`SyncClient.reset` would not find.

This module knows neither links nor processes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup

from triolet.args import EngineArgs
from triolet.cluster.client import ClientFactory, EngineClient, open_client
from triolet.core.control import PauseMode, SleepPart
from triolet.core.engine_core import load_core
from triolet.core.errors import single_error
from triolet.core.loop import LoopPoster, Wakeup, loop_poster
from triolet.core.step_core import StepCore
from triolet.errors import EngineDeadError, OverloadedError, TrioletError
from triolet.models.source import ModelFiles
from triolet.request import Request, TokenOutput

__all__ = ["SyncClient", "open_step_core"]

RETRY_SECONDS = 0.1
"""Between two looks at whether an engine that is being restarted serves again."""

T = TypeVar("T")


def open_step_core(args: EngineArgs, files: ModelFiles, on_phase: Callable[[str], None]) -> StepCore:
    """The core that the arguments ask for, loaded: in this process, or in others and supervised.

    Raises ModelLoadError or UsageError.
    """
    if args.launch_shape().is_one_process and args.tensor_parallel_size == 1:
        return load_core(args, files, on_phase)
    return SyncClient(args, files, on_phase)


class SyncClient:
    """An engine client, driven from outside of its loop. Loads when made; close it.

    Raises ModelLoadError or UsageError where the engine cannot be loaded. ``is_quiet`` is ``is_paused``: a
    pause is complete when the call returns.
    """

    def __init__(
        self,
        args: EngineArgs,
        files: ModelFiles,
        on_phase: Callable[[str], None],
        *,
        client_factory: ClientFactory = open_client,
    ) -> None:
        self._make_client = partial(client_factory, args, files, on_phase)
        self._client: EngineClient
        self._tasks: TaskGroup
        self._post: LoopPoster | None = None
        self._orders: deque[Callable[[], Any]] = deque()
        self._ordered = Wakeup()
        self._death: BaseException | None = None
        self._futures: set[Future[Any]] = set()
        self._in_flight: set[int] = set()
        self._is_serving = self._has_ended = False
        self._collecting: _Collection | None = None
        started: Future[None] = Future()
        self._futures.add(started)
        # A daemon: a script that does not close ends all the same, and its engines with it.
        self._thread = threading.Thread(
            target=self._work, args=(started,), name="triolet-sync-client", daemon=True
        )
        try:
            self._thread.start()
            self._result(started)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ requests

    @property
    def max_model_len(self) -> int:
        return self._client.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._client.vocab_size

    def add(self, *requests: Request) -> None:
        """See :class:`~triolet.core.step_core.StepCore`; waits while an engine is being restarted.

        Raises EngineDeadError once it is not restarted any more.
        """
        ids = {request.request_id for request in requests}
        self._in_flight |= ids  # before they are sent: an interrupt may come right after
        while True:
            try:
                return self._do(lambda: self._client.add(*requests))
            except OverloadedError as exc:
                if exc.status == 429:
                    self._in_flight -= ids
                    raise
            except TrioletError:
                self._in_flight -= ids
                raise
            time.sleep(RETRY_SECONDS)

    def abort(self, request_id: int) -> None:
        """See :class:`~triolet.core.step_core.StepCore`."""
        self._in_flight.discard(request_id)
        self._send(lambda: self._client.abort(request_id))

    def step(self) -> list[TokenOutput]:
        """What has come of the requests since the last time; waits for something while any is computed.

        Raises EngineDeadError with the cause where an engine died under requests that had begun, or for good.
        """
        if not self._in_flight:
            return []
        self._collecting = _Collection(self._expect(), is_waiting=not self.is_quiet)
        self._start_collecting(self._collecting)
        outputs = self._result(self._collecting.future)
        self._collecting = None
        return self._take(outputs)

    def reset(self) -> None:
        """Drop every request, also those of a call that was interrupted."""
        if self._collecting is not None:
            self._send(self._collecting.cancel)
            self._collecting = None
        for request_id in tuple(self._in_flight):
            self.abort(request_id)

    # ------------------------------------------------------------------ control

    @property
    def is_paused(self) -> bool:
        return self._client.is_paused

    @property
    def is_sleeping(self) -> bool:
        return self._client.is_sleeping

    @property
    def is_quiet(self) -> bool:
        return self.is_paused

    def pause(self, mode: PauseMode) -> list[TokenOutput]:
        """See :class:`~triolet.core.step_core.StepCore`; → what came while it was waited for, too."""
        self._await(lambda: self._client.pause(mode, clear_cache=False))
        collection = _Collection(self._expect(), is_waiting=False)
        self._start_collecting(collection)
        return self._take(self._result(collection.future))

    def resume(self) -> None:
        """See :class:`~triolet.core.step_core.StepCore`."""
        self._await(lambda: self._client.resume())

    def sleep(self, level: int) -> None:
        """See :class:`~triolet.core.step_core.StepCore`."""
        self._await(lambda: self._client.sleep(level, "keep"))

    def wake(self, tags: Iterable[SleepPart] | None) -> None:
        """See :class:`~triolet.core.step_core.StepCore`."""
        self._await(lambda: self._client.wake_up(tags))

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See :class:`~triolet.core.step_core.StepCore`."""
        return self._await(
            lambda: self._client.reset_prefix_cache(reset_running_requests=reset_running_requests)
        )

    def close(self) -> None:
        """Have the engines end, on all machines, and wait until they are gone; idempotent."""
        self._send(lambda: self._tasks.start_soon(self._end))
        if self._thread.is_alive():
            self._thread.join()

    # ------------------------------------------------------------------ this side of the loop

    def _take(self, outputs: list[TokenOutput]) -> list[TokenOutput]:
        """Those of requests that have not been dropped; raises where an engine died under one of them."""
        ours = [output for output in outputs if output.request_id in self._in_flight]
        self._in_flight -= {output.request_id for output in ours if output.finish_reason is not None}
        for output in ours:
            if output.is_engine_dead:
                raise EngineDeadError(f"the engine died: {output.error}")
        return ours

    def _do(self, function: Callable[[], T]) -> T:
        """What the function returns, or raises, on the loop."""
        future = self._expect()
        self._send(partial(_fulfil, future, function))
        result: T = self._result(future)
        return result

    def _await(self, function: Callable[[], Awaitable[T]]) -> T:
        """The same for what takes time."""
        future = self._expect()
        self._send(lambda: self._tasks.start_soon(_fulfil_later, future, function))
        result: T = self._result(future)
        return result

    def _start_collecting(self, collection: _Collection) -> None:
        self._send(lambda: self._tasks.start_soon(collection.run, self._client))

    def _expect(self) -> Future[Any]:
        future: Future[Any] = Future()
        self._futures.add(future)
        return future

    def _send(self, callback: Callable[[], Any]) -> None:
        """Have the loop call it, after all that was sent before; nothing once the loop has ended."""
        self._orders.append(callback)
        if self._post is not None:  # else they are carried out when the loop has begun
            self._post(self._ordered.set)

    def _result(self, future: Future[T]) -> T:
        """Wait for it. Raises EngineDeadError where the loop has ended."""
        try:
            if self._has_ended:
                self._fail(future)
            return future.result()
        finally:
            self._futures.discard(future)

    def _fail(self, future: Future[Any]) -> None:
        error = EngineDeadError(f"the engine is dead: {self._death or 'it was closed'}")
        error.__cause__ = self._death
        with suppress(InvalidStateError):
            future.set_exception(error)

    # ------------------------------------------------------------------ the loop's side

    def _work(self, started: Future[None]) -> None:
        """What the thread does."""
        try:
            anyio.run(self._serve, started)
        except BaseException as exc:
            self._death = single_error(exc) if isinstance(exc, BaseExceptionGroup) else exc
            with suppress(InvalidStateError):
                started.set_exception(self._death)
        finally:
            self._has_ended = True
            for future in tuple(self._futures):
                self._fail(future)

    async def _serve(self, started: Future[None]) -> None:
        self._client = self._make_client()
        async with anyio.create_task_group() as self._tasks:
            self._post = loop_poster()
            self._tasks.start_soon(self._carry_out)
            await self._tasks.start(self._client.run)
            self._is_serving = True
            started.set_result(None)
            await anyio.sleep_forever()

    async def _end(self) -> None:
        """Stop what serves; drop what does not yet."""
        if self._is_serving:
            await self._client.stop()
        self._tasks.cancel_scope.cancel()

    async def _carry_out(self) -> None:
        while True:
            while self._orders:
                self._orders.popleft()()
            await self._ordered.wait()


class _Collection:
    """The next outputs; with ``is_waiting`` once there are any, else those that there are."""

    def __init__(self, future: Future[list[TokenOutput]], *, is_waiting: bool) -> None:
        self.future = future
        self._is_wanted = is_waiting
        self._scope: anyio.CancelScope | None = None

    async def run(self, client: EngineClient) -> None:
        """Collect them; none where that is cancelled."""
        outputs: list[TokenOutput] = []
        with anyio.CancelScope() as self._scope:
            if not self._is_wanted:
                self._scope.cancel()  # what there is comes without waiting
            outputs = await client.get_outputs()
        self.future.set_result(outputs)

    def cancel(self) -> None:
        """Wait no longer; called on the loop."""
        self._is_wanted = False
        if self._scope is not None:
            self._scope.cancel()


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except Exception as exc:
        future.set_exception(exc)


async def _fulfil_later(future: Future[T], function: Callable[[], Awaitable[T]]) -> None:
    try:
        future.set_result(await function())
    except Exception as exc:
        future.set_exception(exc)
