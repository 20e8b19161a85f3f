"""A headless process: what its options and signals mean. That it serves is shown in ``test_shapes``."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from triolet.args import ServeArgs
from triolet.cluster import headless
from triolet.cluster.headless import serve_headless
from triolet.cluster.shared_options import SECRET_VARIABLE
from triolet.errors import ConflictError, UsageError

pytestmark = pytest.mark.anyio

HEADLESS: dict[str, Any] = {"headless": True, "data_parallel_size": 2, "data_parallel_start_rank": 1}


async def test_it_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    with pytest.raises(UsageError, match="need a secret"):
        await serve_headless(ServeArgs(**HEADLESS))


class FakeNode:
    """Runs until it is stopped. ``calls`` are what it was told."""

    def __init__(self, *_: Any, error: Exception | None = None, **__: Any) -> None:
        self.calls: list[tuple[str, float]] = []
        self.error = error
        self.changed = anyio.Event()

    async def stop(self, seconds: float) -> None:
        self._note("stop", seconds)

    async def restart(self, seconds: float) -> None:
        self._note("restart", seconds)
        if self.error is not None:
            raise self.error

    def _note(self, name: str, seconds: float) -> None:
        self.calls.append((name, seconds))
        self.changed.set()


async def signals(*numbers: signal.Signals) -> AsyncIterator[signal.Signals]:
    for number in numbers:
        yield number


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_drains_and_the_second_ends(first: signal.Signals) -> None:
    node, exits = FakeNode(), list[int]()
    watcher = headless._Signals(node, 7.0, exits.append)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        await watcher._obey(signals(first, signal.SIGTERM), tasks)
    assert node.calls == [("stop", 7.0)]
    assert exits == [128 + signal.SIGTERM]


@pytest.mark.parametrize("error", [None, ConflictError("engine 1 is starting")])
async def test_a_hang_up_replaces_the_engines(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node = FakeNode(error=error)
    watcher = headless._Signals(node, 7.0)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        await watcher._obey(signals(signal.SIGHUP), tasks)
    assert node.calls == [("restart", 7.0)]
    assert ("not restarted: engine 1 is starting" if error else "all engines are restarted") in caplog.text
