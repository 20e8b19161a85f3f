"""Running the server on the loop that was asked for."""

from __future__ import annotations

import resource
import sys
from typing import Any

import pytest
import sniffio

from triolet.args import ServeArgs
from triolet.cli import event_loop


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_server_runs_on_the_loop_asked_for(backend: Any) -> None:
    ran: list[tuple[str, float]] = []

    async def serve(args: ServeArgs) -> int:
        ran.append((sniffio.current_async_library(), sys.getswitchinterval()))
        return 7

    before = sys.getswitchinterval()
    try:
        assert event_loop.run(serve, ServeArgs(backend=backend)) == 7
    finally:
        sys.setswitchinterval(before)
    assert ran == [(backend, pytest.approx(event_loop.SWITCH_INTERVAL_SECONDS))]


def test_a_server_may_open_as_many_files_as_the_system_lets_it() -> None:
    async def limits(_: ServeArgs) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return int(soft == hard)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        assert event_loop.run(limits, ServeArgs())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
