"""Running the server on the loop that was asked for."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import sniffio

from triolet.args import ServeArgs
from triolet.web import loop


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_server_runs_on_the_loop_asked_for(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, float]] = []

    async def serve(args: ServeArgs) -> int:
        ran.append((sniffio.current_async_library(), sys.getswitchinterval()))
        return 7

    before = sys.getswitchinterval()
    monkeypatch.setattr(loop, "serve", serve)
    try:
        assert loop.run(ServeArgs(backend=backend)) == 7
    finally:
        sys.setswitchinterval(before)
    assert ran == [(backend, pytest.approx(loop.SWITCH_INTERVAL_SECONDS))]
