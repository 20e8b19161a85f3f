"""Router: an ``EngineClient`` over ranks that run in other processes.

Requests go where :class:`~triolet.cluster.dispatcher.Dispatcher` says; what else can be asked of an engine is
asked of every rank, and the answers are put together. Ranks come and go while it runs: whoever makes their
links hands them to :meth:`Router.serve_rank`, whoever watches them tells :meth:`Router.update`.

This module knows no text, no HTTP, no address and nothing of how processes are started.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from triolet.args import EngineArgs
from triolet.cluster.codec import from_plain
from triolet.cluster.control_state import ControlState
from triolet.cluster.dispatcher import Dispatcher
from triolet.cluster.frames import WireError
from triolet.cluster.messages import Message, Outputs, RankReport, Ready, Result
from triolet.cluster.rank_calls import CallLostError, RankCalls
from triolet.cluster.rank_link import RankLink
from triolet.core.control import PauseMode, SleepPart, check_level, check_mode, check_parts
from triolet.core.loop import Wakeup
from triolet.errors import ConflictError, TrioletError
from triolet.request import Request, TokenOutput
from triolet.statistics import RankState, RankStatistics

__all__ = ["MessageLink", "Router"]

STATISTICS_TIMEOUT = 2.0
REPORT_SECONDS = 3.0
"""What a rank does is known from its reports within so long: it beats every second, and news travel."""

logger = logging.getLogger("triolet.cluster")


class MessageLink(Protocol):
    """The way to a rank and back, as :class:`~triolet.cluster.link.Link` is one."""

    def post(self, message: Message) -> None: ...

    async def receive(self) -> Message:
        """The next message. Raises WireError, with the reason, once there is none to come."""
        ...

    def close(self, reason: str) -> None: ...


class Router:
    """Serves requests on ``ranks``, numbered one after the other.

    ``num_front_ends``: how many serve requests on the same ranks, this one included. With several, what
    others ask of the ranks is known from their reports.
    """

    def __init__(self, args: EngineArgs, ranks: Sequence[int], *, num_front_ends: int = 1) -> None:
        self._dispatcher = Dispatcher(args, ranks, has_peers=num_front_ends > 1)
        self._has_peers = num_front_ends > 1
        self._control = ControlState()
        self._calls: dict[int, RankCalls] = {}
        self._first: Ready | None = None
        self._is_stopped = False
        self._output_arrived = Wakeup()
        self._changed = Wakeup()
        self._attached = anyio.Event()
        self._sleeps_until = 0.0
        self._num_asking = 0
        self._follows_from = 0.0

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
        """Report started when the first rank serves; keep time until cancelled."""
        while self._first is None:
            await self._changed.wait()
        task_status.started()
        while True:
            due = self._dispatcher.next_due()
            self._sleeps_until = math.inf if due is None else due
            if self._follows_from > anyio.current_time():
                self._sleeps_until = min(self._sleeps_until, self._follows_from)
            with anyio.move_on_after(self._sleeps_until - anyio.current_time()):
                await self._changed.wait()
            self._follow()
            self._dispatcher.expire(anyio.current_time())
            self._hand_on()

    async def wait_serving(self, ranks: Iterable[int]) -> None:
        """Return once each of ``ranks`` can be given requests, or could before."""
        for rank in ranks:
            while rank not in self._calls:
                await self._attached.wait()

    async def stop(self) -> None:
        """Take all requests from their ranks; :meth:`get_outputs` gives what has come, and then nothing."""
        self._is_stopped = True
        self._dispatcher.abort_all(anyio.current_time())
        self._output_arrived.set()

    def update(self, reports: Iterable[RankReport]) -> None:
        """News of ranks, each whole; those of other ranks are ignored."""
        self._dispatcher.update(reports, anyio.current_time())
        self._follow()
        self._hand_on()

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
        if ready.max_model_len < first.max_model_len:
            return f"its context has {ready.max_model_len} tokens, that of the others {first.max_model_len}"
        return None

    async def _bring_in(self, link: MessageLink, ready: Ready, calls: RankCalls) -> None:
        """Have a rank be like the others, and give it requests from then on."""
        try:
            await self._bring_into_line(ready, calls)
        except CallLostError:
            return
        except TrioletError as exc:
            link.close(f"cannot be paused or put to sleep as the others are: {exc}")
            return
        self._calls[ready.rank] = calls
        self._first = self._first or ready
        self._dispatcher.attach(link, ready, anyio.current_time())
        self._changed.set()
        self._attached.set()
        self._attached = anyio.Event()
        self._hand_on()

    async def _bring_into_line(self, ready: Ready, calls: RankCalls) -> None:
        version = -1
        is_known = self._dispatcher.ranks[ready.rank].generation == ready.generation
        if is_known and not self._has_peers and not self._control.calls():
            await calls.call("wake_up", None)  # it may have missed being woken; if not, this does nothing
            await calls.call("resume")
        while version != self._control.version:
            version = self._control.version
            for method, arguments in self._control.calls():
                await calls.call(method, *arguments)

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

    def abort(self, request_id: int) -> None:
        """Take a request out at once; ids that have ended are ignored."""
        self._dispatcher.abort(request_id, anyio.current_time())

    async def get_outputs(self) -> list[TokenOutput]:
        """All token outputs since the last call; waits for one. None at all once stopped. For one task."""
        while not self._dispatcher.outputs and not self._is_stopped:
            await self._output_arrived.wait()
        return self._dispatcher.take_outputs()

    # ------------------------------------------------------------------ control

    @property
    def is_paused(self) -> bool:
        return self._control.is_paused

    @property
    def is_sleeping(self) -> bool:
        return bool(self._control.asleep)

    async def pause(self, mode: PauseMode, *, clear_cache: bool = True) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_mode(mode)
        self._control.pause()
        self._end_held(mode)
        await self._call_all("pause", mode, clear_cache)
        if clear_cache:
            self._dispatcher.placement.forget_all()

    async def resume(self) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        if self._control.asleep:
            raise ConflictError("the engine sleeps; wake it with wake_up()")
        self._control.resume()
        await self._call_all("resume")

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        check_level(level)
        check_mode(mode)
        self._control.sleep(level)
        self._end_held(mode)
        await self._call_all("sleep", level, mode)
        if level > 0:
            self._dispatcher.placement.forget_all()

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """See :class:`~triolet.cluster.client.EngineClient`."""
        chosen = None if tags is None else list(tags)
        asleep = self._control.asleep
        self._control.wake_up(check_parts(chosen, asleep))
        version = self._control.version
        try:
            await self._call_all("wake_up", chosen)
        except TrioletError:
            if self._control.version == version:
                self._control.sleep_on(asleep)
            raise

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """See :class:`~triolet.cluster.client.EngineClient`; False unless every rank has done it."""
        answers = await self._call_all("reset_prefix_cache", reset_running_requests)
        self._dispatcher.placement.forget_all()
        return all(answers)

    def _end_held(self, mode: PauseMode) -> None:
        if mode == "abort":
            self._dispatcher.abort_held(anyio.current_time())
            self._hand_on()

    def _follow(self) -> None:
        """Know of a pause, or the end of one, that was asked for elsewhere, once all ranks tell of it.

        What was asked for here counts until reports must be younger than that.
        """
        if not self._has_peers or self._num_asking or anyio.current_time() < self._follows_from:
            return
        told = [rank.statistics for rank in self._ranks if rank.state is RankState.READY]
        if told and all(one.is_sleeping for one in told) and not self._control.asleep:
            self._control.sleep(1)
        elif told and all(one.is_paused for one in told) and not self._control.is_paused:
            self._control.pause()
        elif told and self._control.is_paused and not any(one.is_paused for one in told):
            self._control.resume()

    async def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """The answers of all ranks that can be reached and stay so; of several errors the first rank's.

        All are asked at once, so that all hear of what is asked for in the same order. A rank that is lost
        meanwhile, or joins, is made like the others when it can be reached.
        """
        answers: list[Any] = []
        errors: dict[int, Exception] = {}

        async def hear(rank: int, answer: Awaitable[Any]) -> None:
            try:
                answers.append(await answer)
            except CallLostError as exc:
                logger.info("%s", exc)
            except Exception as exc:
                errors[rank] = exc

        asked = {rank: calls.call(method, *arguments) for rank, calls in self._calls.items()}
        self._num_asking += 1
        try:
            async with anyio.create_task_group() as tasks:
                for rank, answer in asked.items():
                    tasks.start_soon(hear, rank, answer)
        finally:
            self._num_asking -= 1
            self._follows_from = anyio.current_time() + REPORT_SECONDS
            self._changed.set()
        if errors:
            raise errors[min(errors)]
        return answers

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
