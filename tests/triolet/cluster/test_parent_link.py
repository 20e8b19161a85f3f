"""What a child does over the link to its parent, and what the parent hears when that fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from tests.triolet.cluster.fake_processes import memory_streams

from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Dead, Message, Phase, RemoteError
from triolet.cluster.parent_link import serve_parent
from triolet.errors import EngineDeadError, ModelLoadError

pytestmark = pytest.mark.anyio


async def outcome(serve: Callable[[Link], Awaitable[None]]) -> tuple[int, list[Message]]:
    """The exit code, and all that the parent heard."""
    ours, theirs = memory_streams()
    messages: list[Message] = []
    codes: list[int] = []

    async def live() -> None:
        codes.append(await serve_parent(theirs, serve))

    async with anyio.create_task_group() as task_group:
        link = Link(ours, name="child")
        task_group.start_soon(link.run)
        task_group.start_soon(live)
        with suppress(LinkClosedError):
            while True:
                messages.append(await link.receive())
    return codes[0], messages


async def test_what_was_said_last_arrives() -> None:
    async def serve(link: Link) -> None:
        for number in range(100):
            link.post(Phase(str(number)))

    code, messages = await outcome(serve)
    assert (code, len(messages)) == (0, 100)


@pytest.mark.parametrize(
    ("error", "has_trace"),
    [(ModelLoadError("no weights"), False), (EngineDeadError("gone"), True), (ValueError("odd"), True)],
)
async def test_what_failed_is_told_out_of_all_groups(
    error: Exception, has_trace: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    async def serve(link: Link) -> None:
        async with anyio.create_task_group():
            raise error

    code, messages = await outcome(serve)
    assert (code, messages) == (1, [Dead(RemoteError.of(error))])
    assert ("Traceback" in capfd.readouterr().err) == has_trace


async def test_several_failures_are_told_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    async def serve(link: Link) -> None:
        raise ExceptionGroup("both", [ValueError("one"), ValueError("two")])

    _, [dead] = await outcome(serve)
    assert isinstance(dead, Dead)
    assert dead.error.name == "ExceptionGroup"
    assert "two" in capfd.readouterr().err


async def test_a_lost_parent_hears_nothing() -> None:
    async def serve(link: Link) -> None:
        link.close("as if it were gone")
        await link.receive()

    code, messages = await outcome(serve)
    assert (code, messages) == (1, [])
