"""A headless process: what its options and signals mean. That it serves is shown in ``test_shapes``."""

from __future__ import annotations

import signal
from typing import Any

import anyio
import pytest
from tests.triolet.core.signals import send

from triolet.args import ServeArgs
from triolet.cluster import headless
from triolet.cluster.headless import serve_headless
from triolet.cluster.shared_options import SECRET_VARIABLE
from triolet.errors import UsageError

pytestmark = pytest.mark.anyio

HEADLESS: dict[str, Any] = {"headless": True, "data_parallel_size": 2, "data_parallel_start_rank": 1}


async def test_it_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="need a secret"):
        await serve_headless(ServeArgs(**HEADLESS))


class FakeNode:
    """Runs until it is stopped. ``calls`` are what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    async def stop(self, seconds: float, why: str) -> None:
        self.calls.append(("stop", seconds, why))

    async def restart(self, seconds: float) -> None:
        self.calls.append(("restart", seconds))


async def test_signals_replace_the_engines_and_end_them() -> None:
    node = FakeNode()
    async with anyio.create_task_group() as tasks:
        await tasks.start(headless._signal_orders(node, 7.0).obey)  # type: ignore[arg-type]
        await send(signal.SIGHUP, signal.SIGTERM)
        tasks.cancel_scope.cancel()
    assert node.calls == [("restart", 7.0), ("stop", 7.0, "SIGTERM")]
