"""Head: where the headless nodes of a cluster come together.

A node joins with its ranks and its configuration, is told the front ends that its ranks are to serve, and
reports of them for as long as it stays. When it is lost its ranks are down, and it, or another, may take its
place. This module starts no process and knows no request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

from triolet.cluster.directory import Directory
from triolet.cluster.handshake import Peer, Role
from triolet.cluster.joining import Credentials, serve_links
from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import (
    Drain,
    Join,
    Leaving,
    RankReports,
    Refused,
    Result,
    Welcome,
)  # fmt: skip
from triolet.cluster.rank_calls import CallLostError, RankCalls
from triolet.cluster.transport import Listener
from triolet.cluster.wording import is_or_are, numbered
from triolet.errors import ConflictError, EngineDeadError
from triolet.statistics import RankState

__all__ = ["Head"]

JOIN_MESSAGE_PATIENCE = 5.0
LOSS_PATIENCE = 2.0
"""How many liveness time-outs a node may take to be known as lost, when another has come with its ranks."""

logger = logging.getLogger("triolet.cluster")


@dataclass(eq=False, slots=True)
class _Node:
    """One that has joined, what it is asked, and whether it has said that it leaves."""

    link: Link
    join: Join
    calls: RankCalls
    leaving: Leaving | None = None

    @property
    def name(self) -> str:
        return f"node {self.join.node}"


class Head:
    """Takes in the nodes that have ``ranks``, and keeps ``directory`` up to date about them.

    ``config`` is what a node must have been started with as well, by option. ``front_ends`` are the addresses
    at which nodes find them.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        directory: Directory,
        config: Mapping[str, Any],
        front_ends: Sequence[str],
        credentials: Credentials,
        *,
        liveness_timeout: float,
    ) -> None:
        self._ranks = frozenset(ranks)
        self._directory = directory
        self._config = dict(config)
        self._front_ends = tuple(front_ends)
        self._credentials = credentials
        self._liveness_timeout = liveness_timeout
        self._nodes: list[_Node] = []
        self._changed = anyio.Event()
        self._drain: Drain | None = None

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that no node has."""
        joined = {rank for node in self._nodes for rank in node.join.ranks}
        return sorted(self._ranks - joined)

    async def wait_changed(self) -> None:
        """Return once a node has come or gone."""
        await self._changed.wait()

    async def run(self, listener: Listener) -> None:
        """Take nodes in until cancelled."""
        await serve_links(listener, self._serve, self._credentials, liveness_timeout=self._liveness_timeout)

    async def restart(self, rank: int, seconds: float) -> None:
        """Have the node of a rank replace its process; return when the new one is ready.

        Raises ConflictError where there is none to replace, EngineDeadError where none comes.
        """
        node = next((node for node in self._nodes if rank in node.join.ranks), None)
        if node is None:
            raise ConflictError(f"engine {rank} is on a machine that is not here: start that one")
        try:
            await node.calls.call("restart_rank", rank, float(seconds))
        except CallLostError:
            raise EngineDeadError(f"engine {rank} did not come back: {node.name} is gone") from None

    async def drain(self, seconds: float) -> None:
        """Have all nodes finish their requests within ``seconds`` and leave; return once they have."""
        self._drain = Drain(seconds)
        for node in self._nodes:
            node.link.post(self._drain)
        while self._nodes:
            await self._changed.wait()

    async def _serve(self, peer: Peer, link: Link) -> None:
        join = None
        with anyio.move_on_after(JOIN_MESSAGE_PATIENCE):
            join = await link.receive()
        if peer.role is not Role.NODE or not isinstance(join, Join):
            link.close("this is where headless nodes join, and nobody else")
            return
        await self._wait_until_free(join, link)
        refusal = self._refusal(join)
        if refusal is not None:
            logger.warning("node %s refused: %s", join.node, refusal.reason)
            await link.send(refusal)
            return
        node = _Node(link, join, RankCalls(link, f"node {join.node}"))
        self._nodes.append(node)
        self._note_change()
        logger.info("%s joined with %s", node.name, numbered("rank", join.ranks))
        try:
            link.post(Welcome(self._front_ends))
            await self._follow(node)
        finally:
            node.calls.lose()
            self._nodes.remove(node)
            self._note_change()

    async def _wait_until_free(self, join: Join, link: Link) -> None:
        """Give a node that had the ranks before, and may be gone, the time to be missed."""
        with anyio.move_on_after(LOSS_PATIENCE * self._liveness_timeout):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_answer_pings, link)
                while self._holder(join) is not None and link.closed_reason is None:
                    await self._changed.wait()
                tasks.cancel_scope.cancel()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _follow(self, node: _Node) -> None:
        """Pass on what a node reports until it is gone."""
        ranks = node.join.ranks
        try:
            while True:
                match await node.link.receive():
                    case RankReports(reports):
                        self._directory.update(report for report in reports if report.rank in ranks)
                    case Result() as result:
                        node.calls.settle(result)
                    case Leaving() as leaving:
                        node.leaving = leaving
                        if not leaving.is_failure:
                            logger.info("%s is leaving: %s", node.name, leaving.reason)
                    case message:
                        logger.warning("%s said %s, which is not for its head", node.name, message)
        except LinkClosedError as error:
            self._note_end(node)
            raise error from None

    def _note_end(self, node: _Node) -> None:
        """Say why a node is gone: as it has said itself, or as it was seen from here."""
        ranks, leaving = node.join.ranks, node.leaving
        if leaving is not None and not leaving.is_failure:
            logger.info("%s has left with %s", node.name, numbered("rank", ranks))
            self._directory.mark_down(ranks, f"{node.name} has left: {leaving.reason}", RankState.LEFT)
            return
        if leaving is None:
            cause = f"{node.name} is lost: {node.link.closed_reason}"
        else:
            cause = f"{node.name} has ended: {leaving.reason}"
        level = logging.ERROR if self._drain is None else logging.INFO
        logger.log(level, "%s; %s %s down", cause, numbered("rank", ranks), is_or_are(ranks))
        self._directory.mark_down(ranks, cause)

    def _holder(self, join: Join) -> Join | None:
        """Who has any of these ranks."""
        joined = (node.join for node in self._nodes)
        return next((other for other in joined if set(other.ranks) & set(join.ranks)), None)

    def _refusal(self, join: Join) -> Refused | None:
        if self._drain is not None:
            return Refused("the head is shutting down")
        strange = [rank for rank in join.ranks if rank not in self._ranks]
        if strange or not join.ranks:
            return Refused(
                f"the node has {numbered('rank', join.ranks)}, but what is expected of other machines is "
                f"{numbered('rank', sorted(self._ranks))}: check --data-parallel-start-rank and "
                "--data-parallel-size-local of both",
                ("data_parallel_start_rank", "data_parallel_size_local"),
            )
        holder = self._holder(join)
        if holder is not None:
            return Refused(
                f"the node has {numbered('rank', join.ranks)}, but node {holder.node}, which is here, has "
                f"{numbered('rank', holder.ranks)}: check --data-parallel-start-rank",
                ("data_parallel_start_rank",),
            )
        names = sorted(self._config.keys() | join.config.keys())
        fields = [name for name in names if self._config.get(name) != join.config.get(name)]
        if fields:
            said = "; ".join(
                f"{name} is {self._config.get(name)!r} at the head, {join.config.get(name)!r} at the node"
                for name in fields
            )
            return Refused(f"the two were started with different options: {said}", tuple(fields))
        return None


async def _answer_pings(link: Link) -> None:
    with suppress(LinkClosedError):
        await link.receive()
        link.close("a node says nothing before it has its answer")
