"""What may be asked of an asynchronous engine beside requests: abort, pause, sleep, prefix cache reset.

The base of :class:`triolet.engine.Engine`, which says what serves. This module knows neither text nor how an
engine starts and ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from functools import partial

from triolet.cluster.client import EngineClient, RankRestarter, TimedClient
from triolet.cluster.restart_turn import restart_in_turn
from triolet.core.control import PauseMode, SleepPart
from triolet.errors import ConflictError, InvalidRequestError
from triolet.frontend.request_table import RequestTable

__all__ = ["EngineControl"]


class EngineControl(ABC):
    """The control surface. Every method raises what :meth:`_serving` does while the engine does not serve."""

    @abstractmethod
    def _serving(self) -> tuple[EngineClient, RequestTable]:
        """What serves, also while draining.

        Raises OverloadedError before and after, EngineDeadError for an engine that died.
        """

    @property
    def is_paused(self) -> bool:
        """Whether requests wait for :meth:`resume` or :meth:`wake_up`."""
        return self._serving()[0].is_paused

    @property
    def is_sleeping(self) -> bool:
        """Whether anything is still to be woken."""
        return self._serving()[0].is_sleeping

    async def abort(self, request_ids: str | Iterable[str]) -> None:
        """End the requests of these ids with what they have; ids that have ended are ignored."""
        ids = {request_ids} if isinstance(request_ids, str) else set(request_ids)
        self._serving()[1].abort_ids(ids)

    def end_within(self, seconds: float) -> None:
        """Have engines in processes of their own end all that they do for this one ``seconds`` from now.

        They do so a little later than they are told to, should this process not have done it itself by then.
        """
        client, _ = self._serving()
        if isinstance(client, TimedClient):
            client.end_within(seconds)

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Compute nothing more, and return when nothing is. New requests are accepted and wait.

        ``abort`` ends all requests with what they have, finish reason ``abort``; ``wait`` lets those that
        have begun finish; ``keep`` freezes them, and they go on where they were. ``abort`` and ``keep`` also
        complete a ``wait`` under way. ``clear_cache`` forgets the
        prefixes computed so far; what was frozen is then computed anew, with the same outcome.

        Raises InvalidRequestError for an unknown mode, ConflictError when resumed before it was complete.

        Cancellation: the engine stays paused.
        """
        await self._serving()[0].pause(mode, clear_cache=clear_cache)

    async def resume(self) -> None:
        """Go on after :meth:`pause`. Raises ConflictError while asleep."""
        await self._serving()[0].resume()

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause as ``mode`` says; from level 1 on give the memory of weights and KV cache back as well.

        Level 0 only pauses. Level 1 drops the KV cache and all weights that can be read again from the
        model's files, which on a CPU are all of them; level 2 drops everything. Requests that were frozen are
        computed anew after waking, with the same outcome.

        Raises InvalidRequestError for an unknown level or mode.

        Cancellation: the engine stays paused, or asleep.
        """
        await self._serving()[0].sleep(level, mode)

    async def wake_up(self, tags: Iterable[SleepPart] | None = None) -> None:
        """Have everything again, or the parts in ``tags``: ``weights``, ``kv_cache``, ``scheduling``.

        Requests go on once nothing is missing. Raises InvalidRequestError for an unknown part, ModelLoadError
        if the weights cannot be read: then the engine sleeps on.

        Cancellation: the engine sleeps on.
        """
        await self._serving()[0].wake_up(tags)

    async def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget the prefixes computed so far; False, and nothing done, while requests use them.

        ``reset_running_requests``: have those compute everything anew instead, with the same outcome.
        """
        client, _ = self._serving()
        return await client.reset_prefix_cache(reset_running_requests=reset_running_requests)

    async def restart_rank(self, rank: int, *, seconds: float = 30.0) -> None:
        """Replace an engine's process, once it has finished its requests; return when the new one serves.

        It takes no new requests meanwhile, others do. What does not finish within ``seconds`` is ended,
        unless nothing of it was sent: that is done again elsewhere.

        Raises InvalidRequestError for a rank that there is not, ConflictError where no process can be
        replaced now, EngineDeadError where the new one does not come.
        """
        await self._restarter(rank).restart_rank(rank, seconds)

    async def restart_ranks(self, *, seconds: float = 30.0) -> None:
        """:meth:`restart_rank` for one after the other, past those that cannot be replaced now.

        Raises ConflictError, which says which those are and why, once all others are replaced.
        """
        await restart_in_turn(self._rank_numbers(), partial(self.restart_rank, seconds=seconds))

    def _rank_numbers(self) -> list[int]:
        return [statistics.rank for statistics in self._serving()[0].rank_statistics()]

    def _restarter(self, rank: int) -> RankRestarter:
        client, _ = self._serving()
        if rank not in self._rank_numbers():
            numbers = ", ".join(map(str, self._rank_numbers()))
            raise InvalidRequestError(f"rank: must be one of {numbers}, got {rank}", param="rank")
        if not isinstance(client, RankRestarter):
            raise ConflictError(
                "the engine runs in this very process; --separate-engine gives it one of its own"
            )
        return client
