"""An API server's link to its launcher: news of the engines from there, orders, and calls both ways.

This module knows neither requests nor HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from triolet.cluster.codec import from_plain
from triolet.cluster.control_state import Order
from triolet.cluster.frames import WireError
from triolet.cluster.link import Link
from triolet.cluster.messages import Call, Drain, Phase, RankReport, RankReports, Result
from triolet.cluster.rank_calls import RankCalls, send_answer

__all__ = ["UNANSWERED", "Answer", "LauncherLink", "NoAnswer", "answer_call"]

UNANSWERED = -1
"""The id of calls whose answer nobody waits for."""

Answer = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """In the place of the answer of an API server that gives none, for ``reason``. It is false."""

    reason: str

    def __bool__(self) -> bool:
        return False


class LauncherLink:
    """``link`` is run by the caller, and its first message has been received."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._calls = RankCalls(link, "the launcher", names_errors=False)
        self._reports: dict[int, RankReport] = {}
        self._on_reports: Callable[[Iterable[RankReport]], None] = lambda reports: None
        self._on_phase: Callable[[str], None] = lambda phase: None
        self._phase: str | None = None
        self._answers: dict[str, Answer] = {"wait_serving": self._wait_serving}
        self._wait_rank: Answer = _no_engines
        self._is_followed = anyio.Event()
        self._order = Order()
        self._on_order: Callable[[Order], Coroutine[Any, Any, Any]] = _no_engines

    @property
    def order(self) -> Order:
        """What engines were asked for last."""
        return self._order

    def follow(
        self,
        on_reports: Callable[[Iterable[RankReport]], None],
        on_phase: Callable[[str], None],
        on_order: Callable[[Order], Coroutine[Any, Any, Any]],
        wait_rank: Answer,
    ) -> None:
        """From here on pass on what is known of the engines, beginning with all there is, and orders.

        ``on_order`` does at once what it has to; what it returns waits for the answers of engines.
        ``wait_rank`` waits until a rank can be given requests, which the launcher may have asked for before.
        """
        self._on_order = on_order
        on_reports(self._reports.values())
        if self._phase is not None:
            on_phase(self._phase)
        self._on_reports, self._on_phase = on_reports, on_phase
        self._wait_rank = wait_rank
        self._is_followed.set()

    def answer(self, answers: Mapping[str, Answer]) -> None:
        """From here on answer such calls of the launcher."""
        self._answers.update(answers)

    def announce(self, line: str) -> None:
        """Have the launcher tell the user, once all API servers say so."""
        self._link.post(Call(UNANSWERED, "announce", (line,)))

    async def call(self, method: str, *arguments: Any) -> Any:
        """The launcher's answer. Raises the error that it answers with.

        Cancellation: what is asked for happens all the same.
        """
        return await self._calls.call(method, *arguments)

    async def call_peers(self, method: str, *arguments: Any, seconds: float = 0.0) -> list[Any]:
        """The answers of all other API servers; :class:`NoAnswer` of one that fails.

        They have ``seconds`` for what is asked, and a little more to answer.
        """
        told = await self.call("call_peers", method, arguments, seconds)
        return [answer if reason is None else NoAnswer(reason) for answer, reason in told]

    async def run(self, drain: Callable[[float, float], Coroutine[Any, Any, None]]) -> None:
        """Take what the launcher says; ``drain(seconds, lead_seconds)`` is what it orders in the end.

        Raises WireError for what makes no sense, LinkClosedError where the launcher has gone.
        """
        async with anyio.create_task_group() as tasks:
            while True:
                match await self._link.receive():
                    case RankReports(reports):
                        self._reports.update((report.rank, report) for report in reports)
                        self._on_reports(reports)
                    case Phase(text):
                        self._phase = text
                        self._on_phase(text)
                    case Drain(seconds, lead_seconds):
                        tasks.start_soon(drain, seconds, lead_seconds)
                    case Call(call_id, "follow", (order,)):
                        self._order = from_plain(Order, order)
                        tasks.start_soon(send_answer, self._link, call_id, self._on_order(self._order))
                    case Call() as call:
                        tasks.start_soon(answer_call, self._link, call, self._answers)
                    case Result() as result:
                        self._calls.settle(result)
                    case message:
                        raise WireError(f"{type(message).__name__} is no order to an API server")

    async def _wait_serving(self, rank: int) -> None:
        await self._is_followed.wait()
        await self._wait_rank(rank)


async def _no_engines(_: Any) -> list[Any]:
    """What a front end without engines makes of an order."""
    return []


async def answer_call(link: Link, call: Call, answers: Mapping[str, Answer]) -> None:
    """Do what is asked for, and send back what it comes to."""

    async def do() -> Any:
        return await answers[call.method](*call.arguments)

    await send_answer(link, call.call_id, do())
