"""RankCalls: calls to a rank over its link, and the answers to them.

A call is over when its answer has come or the link is lost. This module knows nothing of what is called.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio

from triolet.cluster.frames import WireError
from triolet.cluster.messages import Call, RemoteError, Result
from triolet.cluster.rank_link import MessagePost
from triolet.errors import EngineError

__all__ = ["CallLostError", "RankCalls", "gather_answers", "send_answer"]

logger = logging.getLogger("triolet.cluster")


class CallLostError(WireError):
    """The link was lost before the answer came."""


@dataclass(eq=False, slots=True)
class _PendingCall:
    over: anyio.Event = field(default_factory=anyio.Event)
    result: Result | None = None


class RankCalls:
    """The calls under way on one link to ``name``, which is put before errors that it answers with.

    ``names_errors``: False where those say themselves whose they are.
    """

    def __init__(self, link: MessagePost, name: str, *, names_errors: bool = True) -> None:
        self._link = link
        self._name = name
        self._names_errors = names_errors
        self._ids = count()
        self._pending: dict[int, _PendingCall] = {}
        self._is_lost = False

    def call(self, method: str, *arguments: Any) -> Coroutine[Any, Any, Any]:
        """Ask at once; what is returned is to be awaited, and gives the answer.

        Raises the error that the rank answers with, or CallLostError.

        Cancellation: what is asked for happens all the same.
        """
        call_id, pending = next(self._ids), _PendingCall()
        if not self._is_lost:
            self._link.post(Call(call_id, method, arguments))
            self._pending[call_id] = pending
        return self._answer(call_id, pending, method)

    async def _answer(self, call_id: int, pending: _PendingCall, method: str) -> Any:
        try:
            if not self._is_lost:
                await pending.over.wait()
        finally:
            self._pending.pop(call_id, None)
        if pending.result is None:
            raise CallLostError(f"{self._name}: its link was lost before it answered {method}")
        if pending.result.error is not None:
            raise self._named(pending.result.error)
        return pending.result.value

    def settle(self, result: Result) -> None:
        """An answer has come; those to calls that were given up are dropped."""
        pending = self._pending.pop(result.call_id, None)
        if pending is not None:
            pending.result = result
            pending.over.set()

    def lose(self) -> None:
        """The link is lost, and with it all answers."""
        self._is_lost = True
        for pending in self._pending.values():
            pending.over.set()

    def _named(self, error: RemoteError) -> Exception:
        if not self._names_errors:
            return error.exception()
        named = RemoteError(error.name, f"{self._name}: {error.text}", error.attributes)
        return named.exception() if error.name != "RuntimeError" else EngineError(named.text)


async def send_answer(link: MessagePost, call_id: int, answer: Awaitable[Any]) -> None:
    """Send back what a call comes to; what goes wrong, also in sending it, is what the caller is told."""
    try:
        result = Result(call_id, await answer)
    except Exception as exc:
        result = Result(call_id, error=RemoteError.of(exc))
    try:
        link.post(result)
    except WireError as exc:
        error = EngineError(f"the answer cannot be sent: {exc}")
        link.post(Result(call_id, error=RemoteError.of(error)))


async def gather_answers(answers: Sequence[Awaitable[Any]]) -> list[Any]:
    """Wait for all, and give those that were not lost. Of several errors the first one's is raised."""
    given: dict[int, Any] = {}
    errors: dict[int, Exception] = {}

    async def wait(index: int, answer: Awaitable[Any]) -> None:
        try:
            given[index] = await answer
        except CallLostError as exc:
            logger.info("%s", exc)
        except Exception as exc:
            errors[index] = exc

    async with anyio.create_task_group() as tasks:
        for index, answer in enumerate(answers):
            tasks.start_soon(wait, index, answer)
    if errors:
        raise errors[min(errors)]
    return [given[index] for index in sorted(given)]
