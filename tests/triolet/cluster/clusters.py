"""Clusters whose engines are tasks: what the tests of those who join the parts share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ByteStream
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter
from tests.triolet.cluster.fake_rank import FakeRankClient, make_request
from tests.triolet.cluster.nodes import CREDENTIALS, TRANSPORT

from triolet.args import EngineArgs
from triolet.cluster.cluster_client import ClusterClient
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.cluster.parent_link import serve_parent
from triolet.cluster.rank_server import serve_rank
from triolet.request import FinishReason, TokenOutput

__all__ = ["FakeEngines", "RunningClient"]


class FakeEngines:
    """A starter whose processes are engines that compute nothing. ``fail``: see :class:`FakeRankClient`.

    ``others`` is what processes are that are no engines.
    """

    def __init__(
        self,
        *,
        step_seconds: float = 0.01,
        fail: Callable[[], None] = lambda: None,
        others: Callable[[ByteStream], Awaitable[int]] | None = None,
    ) -> None:
        self.starter = FakeStarter(self._role)
        self._others = others
        self.fail = fail
        self._step_seconds = step_seconds

    async def _role(self, child: FakeChild, stream: ByteStream) -> int:
        if self._others is not None and not child.name.startswith("engine"):
            return await self._others(stream)

        async def serve(link: Link) -> None:
            await serve_rank(link, TRANSPORT, self._engine)

        return await serve_parent(stream, serve)

    def _engine(self, start: Start, on_phase: Callable[[str], None]) -> FakeRankClient:
        return FakeRankClient(
            rank=start.rank, step_seconds=self._step_seconds, on_phase=on_phase, fail=lambda: self.fail()
        )

    def child(self, rank: int) -> FakeChild:
        """The rank's first process."""
        return next(child for child in self.starter.children if child.name == f"engine {rank}")

    @property
    def all_ended(self) -> bool:
        return all(child.status is not None for child in self.starter.children)


class RunningClient:
    """A cluster client. ``outputs`` are those that have come, by request."""

    def __init__(self, engines: FakeEngines, **options: Any) -> None:
        self.engines = engines
        self.phases: list[str] = []
        self.outputs: dict[int, list[TokenOutput]] = {}
        self.client = ClusterClient(
            EngineArgs(num_threads=1, separate_engine=True, **options),
            engines.starter,
            TRANSPORT,
            CREDENTIALS,
            on_phase=self.phases.append,
            first_generation=1,
        )
        self._changed = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ClusterClient]:
        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(30):
                await tasks.start(self.client.run)
            tasks.start_soon(self._collect)
            yield self.client
            with anyio.fail_after(30):
                await self.client.stop()
            tasks.cancel_scope.cancel()

    async def _collect(self) -> None:
        while outputs := await self.client.get_outputs():
            for output in outputs:
                self.outputs.setdefault(output.request_id, []).append(output)
            self._changed.set()
            self._changed = anyio.Event()

    def add(self, request_id: int, *, max_tokens: int = 3) -> None:
        self.client.add(make_request(request_id, max_tokens=max_tokens))

    async def wait_ended(self, *request_ids: int) -> list[FinishReason | None]:
        """How they have ended."""
        with anyio.fail_after(30):
            while any(self._reason(request_id) is None for request_id in request_ids):
                await self._changed.wait()
        return [self._reason(request_id) for request_id in request_ids]

    async def wait_begun(self, request_id: int) -> None:
        with anyio.fail_after(30):
            while request_id not in self.outputs:
                await self._changed.wait()

    def _reason(self, request_id: int) -> FinishReason | None:
        outputs = self.outputs.get(request_id)
        return outputs[-1].finish_reason if outputs else None

    def tokens(self, request_id: int) -> list[int]:
        return [token for output in self.outputs[request_id] for token in output.token_ids]
