"""What signals make of a process that users start. They are raised for real, in the process of the test."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from tests.triolet.core.signals import send

from triolet.core.signals import SignalOrders
from triolet.errors import ConflictError

pytestmark = pytest.mark.anyio


@dataclass
class Told:
    """What a process was told, in order. ``held`` restarts and departures wait for."""

    calls: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)
    error: Exception | None = None
    held: anyio.Event | None = None
    is_leaving: bool = False

    async def leave(self, signal_name: str) -> None:
        await self._note(signal_name)

    async def restart(self) -> None:
        await self._note("restart")
        if self.error is not None:
            raise self.error

    async def _note(self, call: str) -> None:
        self.calls.append(call)
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.ends.append(call)

    @asynccontextmanager
    async def obeying(self, *, restarts: bool = True) -> AsyncIterator[None]:
        orders = SignalOrders(
            leave=self.leave,
            restart=self.restart if restarts else None,
            is_leaving=lambda: self.is_leaving,
            exit_now=self.exits.append,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(orders.obey)
            yield
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_leaves_in_order_and_the_second_at_once(
    first: signal.Signals, second: signal.Signals
) -> None:
    told = Told(held=anyio.Event())
    async with told.obeying():
        await send(first)
        assert (told.calls, told.exits) == ([first.name], [])
        await send(second)
    assert (told.calls, told.exits) == ([first.name], [128 + second])


async def test_the_second_counts_also_once_the_first_was_obeyed() -> None:
    told = Told()
    async with told.obeying():
        await send(signal.SIGTERM, signal.SIGTERM)
    assert (told.calls, told.exits) == (["SIGTERM"], [128 + signal.SIGTERM])


async def test_who_leaves_already_is_ended_by_the_first() -> None:
    told = Told(is_leaving=True)
    async with told.obeying():
        await send(signal.SIGTERM)
    assert (told.calls, told.exits) == ([], [128 + signal.SIGTERM])


@pytest.mark.parametrize("error", [None, ConflictError("engine 1 is starting")])
async def test_a_hang_up_restarts_and_says_how_that_went(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told = Told(error=error)
    async with told.obeying():
        await send(signal.SIGHUP, signal.SIGHUP)
    assert told.calls == ["restart", "restart"]
    said = [record.getMessage() for record in caplog.records]
    expected = "not all engines are restarted: engine 1 is starting" if error else "all engines are restarted"
    assert said == [expected] * 2


async def test_a_hang_up_during_a_restart_or_while_leaving_is_told_why_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told(held=anyio.Event())
    async with told.obeying():
        await send(signal.SIGHUP, signal.SIGHUP)
        assert "are not restarted: they are being restarted already" in caplog.text
        await send(signal.SIGTERM, signal.SIGHUP)
        assert "SIGHUP: the engines are not restarted: the server is shutting down" in caplog.text
    assert told.calls == ["restart", "SIGTERM"]


async def test_who_leaves_goes_no_further_with_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(held=anyio.Event())
    async with told.obeying():
        await send(signal.SIGHUP, signal.SIGTERM)
        assert told.ends == ["restart"], "it does not go on"
    said = [record.getMessage() for record in caplog.records]
    assert said == ["not all engines are restarted: the server is shutting down"]


async def test_a_hang_up_reads_files_again_also_without_engines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told = Told()
    orders = SignalOrders(leave=told.leave, reload=lambda: told.calls.append("reload"))
    async with anyio.create_task_group() as tasks:
        await tasks.start(orders.obey)
        await send(signal.SIGHUP, signal.SIGHUP)
        tasks.cancel_scope.cancel()
    assert told.calls == ["reload", "reload"]
    assert caplog.text == "", "nothing was restarted"


async def test_without_engines_to_restart_a_hang_up_is_left_to_the_system() -> None:
    before = signal.getsignal(signal.SIGHUP)
    async with Told().obeying(restarts=False):
        assert signal.getsignal(signal.SIGHUP) is before
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


async def test_signals_mean_what_they_did_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    async with Told().obeying():
        pass
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    assert after == before
