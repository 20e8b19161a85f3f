"""An engine at work for its front ends, under the orders of its parent: what an engine process is for.

It loads, says that it is ready, dials every front end it is told of, serves all of them at once, and beats as
long as its event loop turns. The same code runs in simulations, with a fake engine and virtual networks.

This module knows neither processes nor models.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from triolet.cluster.client import EngineClient
from triolet.cluster.codec import from_plain
from triolet.cluster.frames import WireError
from triolet.cluster.front_end_link import FrontEndLinks
from triolet.cluster.link import Link
from triolet.cluster.messages import Beat, Drain, Phase, RankLoad, Ready, Start, Stop, Topology
from triolet.cluster.rank_control import RankControl
from triolet.cluster.rank_requests import RankRequests
from triolet.cluster.rank_tally import RankTally
from triolet.cluster.transport import Transport
from triolet.core.loop import Wakeup, loop_poster
from triolet.statistics import RankStatistics

__all__ = ["RankClientFactory", "serve_rank"]

BEAT_SECONDS = 1.0
SHORTEST_BEAT_SECONDS = 0.1
"""Between two beats, however much the load changes."""

RankClientFactory = Callable[[Start, Callable[[str], None]], EngineClient]
"""Makes the client of an engine from what its process was told; it loads when it runs, telling its phase."""


async def serve_rank(
    link: Link,
    transport: Transport,
    client_factory: RankClientFactory,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> None:
    """Be the engine that the parent at the other end of ``link`` asks for, until it says that it is enough.

    ``random_bytes`` is where nonces come from.
    Raises what the engine fails with, LinkClosedError where the parent has gone.
    """
    start = await link.receive()
    if not isinstance(start, Start):
        raise WireError(f"an engine begins with Start, not with {type(start).__name__}")
    await _RankServer(start, link, transport, client_factory, random_bytes).run()


class _RankServer:
    def __init__(
        self,
        start: Start,
        link: Link,
        transport: Transport,
        client_factory: RankClientFactory,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._start = start
        self._link = link
        self._phase = "starting"
        self._changed = Wakeup()
        self._note_from_thread = loop_poster()
        self._client = client_factory(start, self._tell_phase)
        self._requests = RankRequests(self._client, self._changed.set)
        self._control = RankControl(self._client)
        counted = start.extra.get("counted")
        before = RankStatistics(rank=start.rank) if counted is None else from_plain(RankStatistics, counted)
        self._tally = RankTally(self._client, before, link)
        self._front_ends = FrontEndLinks(
            start, transport, self._tally, self._requests, self._control, random_bytes
        )
        self._is_ready = False

    async def run(self) -> None:
        async with anyio.create_task_group() as task_group:
            task_group.start_soon(self._beat)
            task_group.start_soon(self._follow_orders, task_group)
            await task_group.start(self._client.run)
            self._is_ready = True
            ready = self._ready()
            self._link.post(ready)
            task_group.start_soon(self._requests.hand_out)
            task_group.start_soon(self._control.run)
            task_group.start_soon(self._front_ends.run, ready)
        self._tally.post()

    def _ready(self) -> Ready:
        scheduler = self._client.rank_statistics()[0].scheduler
        return Ready(
            rank=self._start.rank,
            generation=self._start.generation,
            max_model_len=self._client.max_model_len,
            vocab_size=self._client.vocab_size,
            num_blocks=scheduler.num_blocks,
            block_size=self._start.args["block_size"],
        )

    def _tell_phase(self, phase: str) -> None:
        # Called from the loading thread.
        self._phase = phase
        self._note_from_thread(self._changed.set)

    async def _beat(self) -> None:
        """Say again and again that the loop turns, what is being done and how much there is to do."""
        told = ""
        while True:
            if not self._is_ready and self._phase != told:
                told = self._phase
                self._link.post(Phase(told))
            load = self._load()
            self._tally.post_if_due(load.num_steps)
            self._link.post(Beat(load))
            await anyio.sleep(SHORTEST_BEAT_SECONDS)
            with anyio.move_on_after(BEAT_SECONDS - SHORTEST_BEAT_SECONDS):
                await self._changed.wait()

    def _load(self) -> RankLoad:
        (statistics,) = self._client.rank_statistics()
        return RankLoad(
            num_running=statistics.scheduler.num_running,
            num_waiting=statistics.scheduler.num_waiting,
            num_waiting_tokens=self._requests.num_waiting_tokens,
            kv_usage=statistics.scheduler.kv_usage,
            num_steps=self._tally.num_earlier_steps + statistics.num_steps,
            step_age=statistics.last_step_age,
            is_paused=statistics.is_paused,
            is_sleeping=statistics.is_sleeping,
        )

    async def _follow_orders(self, task_group: TaskGroup) -> None:
        while True:
            match await self._link.receive():
                case Topology(front_ends):
                    self._front_ends.set_topology(front_ends)
                case Drain(seconds):
                    task_group.start_soon(self._drain, seconds, task_group)
                case Stop():
                    await self._end("there was no time to finish requests", task_group)
                case message:
                    raise WireError(f"{type(message).__name__} is no order to an engine")

    async def _drain(self, seconds: float, task_group: TaskGroup) -> None:
        """Finish what there is within ``seconds``, see the last outputs on their way, and end."""
        with anyio.move_on_after(seconds):
            await self._requests.wait_idle()
        await self._end("the time to finish requests was over", task_group)

    async def _end(self, reason: str, task_group: TaskGroup) -> None:
        """End, once those that have begun are told why."""
        self._requests.end_all(f"rank {self._start.rank}: it was told to end, and {reason}")
        await self._front_ends.flush()
        task_group.cancel_scope.cancel()
