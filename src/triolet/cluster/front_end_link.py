"""The links of an engine to its front ends: dialled, dialled again when lost, served while they last.

This module knows nothing of the engine's parent.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from triolet.cluster.codec import from_plain, to_plain
from triolet.cluster.control_state import Order
from triolet.cluster.frames import WireError
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, dial
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Abort, Add, Call, Drain, Ready, Start
from triolet.cluster.rank_calls import send_answer
from triolet.cluster.rank_control import RankControl
from triolet.cluster.rank_requests import FrontEndRequests, RankRequests
from triolet.cluster.rank_tally import RankTally
from triolet.cluster.transport import Address, Transport
from triolet.core.loop import Wakeup
from triolet.errors import JoinError

__all__ = ["FrontEndLinks"]

DIAL_SECONDS = 60.0
"""Seconds between two lines that say that a front end cannot be reached."""
FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0
FLUSH_SECONDS = 1.0
DRAIN_MARGIN_SECONDS = 1.0
"""A front end that is told to end has so much longer than its requests, to end them in its own words."""

logger = logging.getLogger("triolet.cluster")


class FrontEndLinks:
    """Keeps a link to each front end that is to be served."""

    def __init__(
        self,
        start: Start,
        transport: Transport,
        tally: RankTally,
        requests: RankRequests,
        control: RankControl,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._start = start
        self._credentials = Credentials(start.secret, random_bytes)
        self._transport = transport
        self._tally = tally
        self._requests = requests
        self._control = control
        self._wanted: tuple[str, ...] = ()
        self._changed = Wakeup()
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._links: set[Link] = set()

    def set_topology(self, addresses: tuple[str, ...]) -> None:
        """From here on these front ends are to be served, and no others."""
        self._wanted = addresses
        self._changed.set()

    async def run(self, ready: Ready) -> None:
        """Serve; ``ready`` is what each front end is greeted with."""
        async with anyio.create_task_group() as task_group:
            while True:
                await self._changed.wait()
                for address in [address for address in self._scopes if address not in self._wanted]:
                    self._scopes.pop(address).cancel()
                for address in self._wanted:
                    if address not in self._scopes:
                        self._scopes[address] = anyio.CancelScope()
                        task_group.start_soon(self._keep, address, self._scopes[address], ready)

    async def flush(self) -> None:
        """Return once all that was sent is written, or a second later."""
        with anyio.move_on_after(FLUSH_SECONDS):
            for link in tuple(self._links):
                with suppress(LinkClosedError):
                    await link.flush()

    async def _keep(self, address: str, scope: anyio.CancelScope, ready: Ready) -> None:
        """Dial a front end and serve it, again and again."""
        with scope:
            delay = FIRST_DELAY_SECONDS
            while True:
                try:
                    link = await self._dial(address)
                except JoinError as exc:
                    logger.warning("engine %d: %s", self._start.rank, exc)
                else:
                    began = anyio.current_time()
                    await self._serve(link, ready)
                    if anyio.current_time() - began > LONGEST_DELAY_SECONDS:  # else it was not taken in
                        delay = FIRST_DELAY_SECONDS
                await anyio.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY_SECONDS)

    async def _dial(self, address: str) -> Link:
        """A link to a front end; raises JoinError where none comes about for a while."""
        place = Address.parse(address)
        return await dial(
            self._transport,
            place,
            Peer(Role.ENGINE, self._start.rank),
            self._credentials,
            timeout=DIAL_SECONDS,
            liveness_timeout=None if place.host is None else self._start.extra["liveness_timeout"],
        )

    async def _serve(self, link: Link, ready: Ready) -> None:
        """Serve a front end until its link is lost."""
        front_end = FrontEndRequests(link.post)
        self._links.add(link)
        link.post(ready)
        try:
            async with anyio.create_task_group() as task_group:
                task_group.start_soon(link.run)
                await self._receive(link, front_end, task_group)
                task_group.cancel_scope.cancel()
        finally:
            self._links.discard(link)
            self._requests.leave(front_end)

    async def _receive(self, link: Link, front_end: FrontEndRequests, task_group: TaskGroup) -> None:
        """Take what comes until the link is lost; whoever sends what makes no sense loses it."""
        try:
            while True:
                match await link.receive():
                    case Add(request):
                        self._requests.add(front_end, request)
                    case Abort(request_ids, is_moved):
                        self._requests.abort(front_end, request_ids, is_moved=is_moved)
                    case Drain(seconds):
                        task_group.start_soon(self._leave_after, seconds + DRAIN_MARGIN_SECONDS, front_end)
                    case Call(call_id, method, arguments):
                        task_group.start_soon(send_answer, link, call_id, self._begin(method, arguments))
                    case message:
                        raise WireError(f"{type(message).__name__} is nothing to ask an engine for")
        except LinkClosedError as exc:
            logger.info("engine %d: %s", self._start.rank, exc)
        except WireError as exc:
            logger.warning("%s: %s", link.name, exc)
            link.close(str(exc))

    async def _leave_after(self, seconds: float, front_end: FrontEndRequests) -> None:
        """Compute nothing more for a front end from then on, should it not have said so itself by then."""
        await anyio.sleep(seconds)
        self._requests.leave(front_end)

    def _begin(self, method: str, arguments: tuple[Any, ...]) -> Awaitable[Any]:
        """Do what a front end calls for; what is returned waits for its outcome."""
        match method, arguments:
            case "follow", (order,):
                return self._control.follow(from_plain(Order, order))
            case "statistics", ():
                return self._statistics()
            case _:
                raise WireError(f"there is no call {method!r}, or not with these arguments")

    async def _statistics(self) -> Any:
        return to_plain(await self._tally.tell())
