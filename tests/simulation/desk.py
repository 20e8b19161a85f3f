"""Where clients ask a front end, in its process: the part that HTTP plays in production.

What they want goes into a tray, which a task of the process takes from, so that a stopped process does not
hear of it. When the process ends, its clients find their connections closed.

This module knows nothing of engines but their router.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from anyio.lowlevel import checkpoint
from tests.simulation.tickets import Ticket, WrongError

from triolet.cluster.router import Router
from triolet.core.loop import Wakeup
from triolet.errors import RequestError, TrioletError
from triolet.statistics import RankStatistics

__all__ = ["Control", "Desk"]

Control = Callable[[Router], Awaitable[object]]


class Desk:
    """``tickets`` are those of requests that the engine client has, by their ids."""

    def __init__(self, client: Router, name: str, trace: Callable[..., None]) -> None:
        self.client, self.name = client, name
        self.tickets: dict[int, Ticket] = {}
        self.is_closed = self.is_serving = False
        self._is_idle = anyio.Event()
        self._tray: deque[tuple[str, Ticket | tuple[str, Control]]] = deque()
        self._arrived = Wakeup()
        self._trace = trace
        self.problems: list[str] = []
        self.counted: list[RankStatistics] = []
        """What was known of the ranks when it was looked at last."""

    # ------------------------------------------------------------------ what clients do

    def ask(self, ticket: Ticket) -> None:
        self._put("ask", ticket)

    def leave(self, ticket: Ticket) -> None:
        """The client does not want it any more."""
        ticket.end("left")
        self._put("leave", ticket)

    def control(self, name: str, control: Control) -> None:
        """Ask for something else than tokens, such as a pause."""
        self._trace("control", self.name, name)
        self._put("control", (name, control))

    def _put(self, kind: str, item: Ticket | tuple[str, Control]) -> None:
        if self.is_closed or not (self.is_serving or isinstance(item, Ticket)):
            if isinstance(item, Ticket) and item.outcome is None:
                item.end("lost", f"{self.name} is gone")
            return
        self._tray.append((kind, item))
        self._arrived.set()

    def close(self, cause: str) -> None:
        """The process has ended, or is about to."""
        self.is_closed = True
        left = [item for _, item in self._tray if isinstance(item, Ticket)]
        for ticket in (*self.tickets.values(), *left):
            if ticket.outcome is None:
                ticket.end("lost", cause)
        self.tickets.clear()
        self._tray.clear()

    # ------------------------------------------------------------------ what the process does

    async def wait_idle(self) -> None:
        """Return once no client waits."""
        while self.tickets or self._tray:
            self._is_idle = anyio.Event()
            await self._is_idle.wait()

    async def run(self) -> None:
        """Serve the clients until cancelled, or the engine client has stopped."""
        self.is_serving = True
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._hand_out)
                while True:
                    while self._tray:
                        kind, item = self._tray.popleft()
                        if isinstance(item, Ticket):
                            self._serve(kind, item)
                        else:
                            tasks.start_soon(self._call, *item)
                            await checkpoint()  # so that they begin in this order
                    await self._arrived.wait()
        finally:
            self.close(f"{self.name} has shut down")

    def _serve(self, kind: str, ticket: Ticket) -> None:
        request_id = ticket.request.request_id
        if kind == "leave":
            if self.tickets.pop(request_id, None) is not None:
                self.client.abort(request_id)
            if not self.tickets:
                self._is_idle.set()
        elif ticket.outcome is None:
            try:
                self.client.add(ticket.request)
            except RequestError as exc:
                ticket.end("refused", f"{type(exc).__name__}: {exc}")
            else:
                self.tickets[request_id] = ticket

    async def _hand_out(self) -> None:
        while outputs := await self.client.get_outputs():
            for output in outputs:
                ticket = self.tickets.get(output.request_id)
                if ticket is None or ticket.outcome == "left":
                    continue
                try:
                    ticket.take(output)
                except WrongError as exc:
                    self.problems.append(str(exc))
                    if ticket.outcome is None:
                        ticket.end("wrong", str(exc))
                if output.finish_reason is not None:
                    self.tickets.pop(output.request_id, None)
            if not self.tickets:
                self._is_idle.set()

    async def _call(self, name: str, control: Control) -> None:
        try:
            result: object = await control(self.client)
        except (TrioletError, RuntimeError) as exc:
            result = exc
        self._trace("answer", self.name, name, repr(result))
