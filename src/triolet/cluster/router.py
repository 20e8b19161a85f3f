"""Router: an ``EngineClient`` over ranks that run in other processes.

Requests go where :class:`~triolet.cluster.dispatcher.Dispatcher` says; what else can be asked of an engine is
asked of every rank, and the answers are put together. Ranks come and go while it runs: whoever makes their
links hands them to :meth:`Router.serve_rank`, whoever watches them tells :meth:`Router.update`.

This module knows no text, no HTTP, no address and nothing of how processes are started.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.codec import from_plain, to_plain
from triolet.cluster.control_owner import ControlOwner
from triolet.cluster.control_state import Order
from triolet.cluster.dispatcher import Dispatcher
from triolet.cluster.frames import WireError
from triolet.cluster.messages import Drain, Message, Outputs, RankReport, Ready, Result
from triolet.cluster.rank_calls import CallLostError, RankCalls, gather_answers
from triolet.cluster.rank_link import RankLink
from triolet.core.control import PauseMode, SleepPart
from triolet.core.loop import Wakeup
from triolet.errors import EngineDeadError, TrioletError
from triolet.request import Request, TokenOutput
from triolet.statistics import RankState, RankStatistics

__all__ = ["MessageLink", "Router"]

STATISTICS_TIMEOUT = 2.0

Ask = Callable[..., Awaitable[Any]]
"""Has it decided whether engines pause or sleep: see :meth:`ControlOwner.ask`."""

logger = logging.getLogger("triolet.cluster")


class MessageLink(Protocol):
    """The way to a rank and back, as :class:`~triolet.cluster.link.Link` is one."""

    def post(self, message: Message) -> None: ...

    async def receive(self) -> Message:
        """The next message. Raises WireError, with the reason, once there is none to come."""
        ...

    def close(self, reason: str) -> None: ...


class Router:
    """Serves requests on ``ranks``, numbered one after the other, once all of ``first_ranks`` can be reached.

    ``num_front_ends``: how many serve requests on the same ranks, this one included. ``ask``: where it is
    decided whether ranks pause or sleep, if that is not here: what comes of it is told to :meth:`follow`.
    """

    def __init__(
        self,
        args: EngineArgs,
        ranks: Sequence[int],
        *,
        first_ranks: Sequence[int] = (),
        num_front_ends: int = 1,
        ask: Ask | None = None,
    ) -> None:
        self._first_ranks = first_ranks
        self._dispatcher = Dispatcher(args, ranks, has_peers=num_front_ends > 1)
        self._owner = ControlOwner([self.follow])
        self._ask = ask or self._owner.ask
        self._order = Order()
        self._calls: dict[int, RankCalls] = {}
        self._first: Ready | None = None
        self._is_started = self._is_stopped = False
        self._output_arrived = Wakeup()
        self._changed = Wakeup()
        self._news = anyio.Event()
        self._sleeps_until = 0.0
        self._end: float | None = None

    # ------------------------------------------------------------------ what it is

    @property
    def max_model_len(self) -> int:
        return self._first_ready().max_model_len

    @property
    def vocab_size(self) -> int:
        return self._first_ready().vocab_size

    @property
    def num_ranks(self) -> int:
        return len(self._ranks)

    @property
    def rank_states(self) -> tuple[RankState, ...]:
        return tuple(rank.state for rank in self._ranks)

    @property
    def num_requests(self) -> int:
        """Requests under way."""
        return self._dispatcher.num_requests

    @property
    def _ranks(self) -> list[RankLink]:
        return list(self._dispatcher.ranks.values())

    def _first_ready(self) -> Ready:
        assert self._first is not None, "no rank has been ready yet"
        return self._first

    # ------------------------------------------------------------------ life

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Report started when a rank serves, and all of ``first_ranks`` do; keep time until cancelled.

        The context is the shortest of those that serve by then; no later rank may have a shorter one.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._owner.run)
            while self._first is None:
                await self._changed.wait()
            await self._wait_first()
            self._is_started = True
            task_status.started()
            await self._keep_time()

    async def _keep_time(self) -> None:
        while True:
            due = self._dispatcher.next_due()
            self._sleeps_until = math.inf if due is None else due
            with anyio.move_on_after(self._sleeps_until - anyio.current_time()):
                await self._changed.wait()
            self._dispatcher.expire(anyio.current_time())
            self._hand_on()

    async def _wait_first(self) -> None:
        for rank in self._first_ranks:
            while rank not in self._calls:
                await self._news.wait()

    async def wait_back(self, rank: int) -> None:
        """Return once a rank whose process is new can be given requests.

        Raises EngineDeadError where the rank has left or died for good before that.
        """
        while rank not in self._calls:
            state = self._dispatcher.ranks[rank].state
            if state in (RankState.LEFT, RankState.DEAD):
                raise EngineDeadError(f"engine {rank} did not come back: it is {state}")
            await self._news.wait()

    async def stop(self) -> None:
        """Take all requests from their ranks; :meth:`get_outputs` gives what has come, and then nothing."""
        self._is_stopped = True
        self._dispatcher.abort_all(anyio.current_time())
        self._output_arrived.set()

    def end_within(self, seconds: float) -> None:
        """See :class:`~triolet.cluster.client.TimedClient`; ranks that come later are told as well."""
        self._end = anyio.current_time() + seconds
        for rank in self._ranks:
            if rank.link is not None:
                rank.link.post(Drain(seconds))

    def update(self, reports: Iterable[RankReport]) -> None:
        """News of ranks, each whole; those of other ranks are ignored."""
        self._dispatcher.update(reports, anyio.current_time())
        self._note_news()

    async def serve_rank(self, link: MessageLink, ready: Ready) -> None:
        """Serve requests over a rank's link until it is lost; ``ready`` came over it first.

        The rank is given no request before it is paused or asleep, if the others are.
        """
        rank = self._dispatcher.ranks.get(ready.rank)
        problem = self._problem_with(ready)
        if rank is None or problem is not None:
            logger.error("rank %d is not taken in: %s", ready.rank, problem)
            link.close(f"not taken in: {problem}")
            return
        calls = RankCalls(link, f"rank {rank.rank}")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._bring_in, link, ready, calls)
                await self._receive(rank, link, calls)
                tasks.cancel_scope.cancel()
        finally:
            calls.lose()
            if self._calls.get(rank.rank) is calls:
                del self._calls[rank.rank]

    def _problem_with(self, ready: Ready) -> str | None:
        if ready.rank not in self._dispatcher.ranks:
            return f"there are only the ranks {', '.join(map(str, self._dispatcher.ranks))}"
        first = self._first or ready
        if ready.vocab_size != first.vocab_size:
            return f"its vocabulary has {ready.vocab_size} tokens, that of the others {first.vocab_size}"
        if self._is_started and ready.max_model_len < first.max_model_len:
            return f"its context has {ready.max_model_len} tokens, that of the others {first.max_model_len}"
        return None

    async def _bring_in(self, link: MessageLink, ready: Ready, calls: RankCalls) -> None:
        """Have a rank be like the others, and give it requests from then on."""
        try:
            await self._bring_into_line(calls)
        except CallLostError:
            return
        except TrioletError as exc:
            link.close(f"cannot be paused or put to sleep as the others are: {exc}")
            return
        rank = self._dispatcher.ranks[ready.rank]
        if rank.link is not None and rank.generation is not None and ready.generation < rank.generation:
            link.close("not taken in: a newer process of this rank is here")
            return
        if self._end is not None:
            link.post(Drain(max(0.0, self._end - anyio.current_time())))
        self._calls[ready.rank] = calls
        if self._first is None or ready.max_model_len < self._first.max_model_len:
            self._first = ready
        self._dispatcher.attach(link, ready, anyio.current_time())
        self._changed.set()
        self._note_news()

    async def _bring_into_line(self, calls: RankCalls) -> None:
        told = Order()
        while told is not self._order and self._order.state.version:
            told = self._order
            try:
                await calls.call("follow", to_plain(told))
            except CallLostError:
                raise
            except TrioletError:
                if told is self._order:  # else it was overtaken
                    raise

    async def _receive(self, rank: RankLink, link: MessageLink, calls: RankCalls) -> None:
        reason = "cancelled"
        try:
            while True:
                match await link.receive():
                    case Outputs(outputs):
                        self._dispatcher.receive(rank, link, outputs, anyio.current_time())
                        self._hand_on()
                    case Result() as result:
                        calls.settle(result)
                    case message:
                        link.close(f"{type(message).__name__} is nothing that a rank sends here")
        except WireError as exc:
            reason = str(exc)
        finally:
            self._dispatcher.detach(rank, link, reason, anyio.current_time())
            self._hand_on()

    def _note_news(self) -> None:
        """A rank has come, or there is news of one."""
        self._news.set()
        self._news = anyio.Event()
        self._hand_on()

    def _hand_on(self) -> None:
        """Wake whoever waits for outputs, and the time-keeper if there is something for it earlier."""
        if self._dispatcher.outputs:
            self._output_arrived.set()
        due = self._dispatcher.next_due()
        if due is not None and due < self._sleeps_until:
            self._changed.set()

    # ------------------------------------------------------------------ requests

    def add(self, *requests: Request) -> None:
        """Queue requests that belong together, all of them at one rank or none; never blocks.

        Raises InvalidRequestError for what cannot be done in another process or at the rank asked for,
        OverloadedError when too many wait or no rank serves.
        """
        self._dispatcher.add(requests, anyio.current_time())

    def check_room(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        self._dispatcher.check_room(anyio.current_time())

    def abort(self, request_id: int, *, is_moved: bool = False) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`. Whoever asks a router moves no requests."""
        assert not is_moved
        self._dispatcher.abort(request_id, anyio.current_time())

    async def get_outputs(self) -> list[TokenOutput]:
        """All token outputs since the last call; waits for one. None at all once stopped. For one task."""
        while not self._dispatcher.outputs and not self._is_stopped:
            await self._output_arrived.wait()
        return self._dispatcher.take_outputs()

    # ------------------------------------------------------------------ control

    @property
    def is_paused(self) -> bool:
        return self._order.state.is_paused

    @property
    def is_sleeping(self) -> bool:
        return bool(self._order.state.asleep)

    async def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        await self._ask("pause", mode, clear_cache)

    async def resume(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        await self._ask("resume")

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        await self._ask("sleep", level, mode)

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        await self._ask("wake_up", None if tags is None else tuple(tags))

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See :class:`~triolet.cluster.client.EngineClient`; False unless every rank has done it."""
        return bool(await self._ask("reset_prefix_cache", reset_running_requests))

    def adopt(self, order: Order) -> None:
        """From here on be as the launch is."""
        self._order = order
        if order.ends_requests:
            self._dispatcher.end_all(anyio.current_time())
            self._hand_on()
        if order.forgets_prefixes:
            self._dispatcher.placement.forget_all()

    def follow(self, order: Order) -> Coroutine[Any, Any, list[Any]]:
        """:meth:`adopt`, and tell all ranks at once; what is returned waits for them: their answers.

        A rank that cannot be reached is made like the others before it is given requests.
        """
        self.adopt(order)
        plain = to_plain(order)
        return gather_answers([self._calls[rank].call("follow", plain) for rank in sorted(self._calls)])

    # ------------------------------------------------------------------ statistics

    def rank_statistics(self) -> tuple[RankStatistics, ...]:
        """What each rank told last, and its state as it is."""
        return tuple(self._dispatcher.statistics_of(rank, anyio.current_time()) for rank in self._ranks)

    async def refresh_statistics(self) -> None:
        """Ask all ranks; those that do not answer in time keep what they told last."""
        with anyio.move_on_after(STATISTICS_TIMEOUT):
            async with anyio.create_task_group() as tasks:
                for rank, calls in list(self._calls.items()):
                    tasks.start_soon(self._refresh, self._dispatcher.ranks[rank], calls)

    async def _refresh(self, rank: RankLink, calls: RankCalls) -> None:
        try:
            told = from_plain(RankStatistics, await calls.call("statistics"))
        except (TrioletError, RuntimeError) as exc:
            logger.info("rank %d tells no statistics: %s", rank.rank, exc)
            return
        rank.note_statistics(told)
