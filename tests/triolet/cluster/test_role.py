"""A role runs over its link, and ends with it."""

from __future__ import annotations

import socket
import threading

import anyio
import pytest

from triolet.cluster.role import ORPHANED, ParentStream, run_role
from triolet.cluster.unix_stream import UnixStream


class Left(BaseException):
    """In place of the end of the process."""


def leave(code: int) -> None:
    raise Left(code)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_role_is_found_by_name_and_run_on_the_loop_asked_for(backend: str) -> None:
    ours, theirs = socket.socketpair()
    codes: list[int] = []

    def run() -> None:
        codes.append(run_role("tests.triolet.cluster.roles:echo", theirs.detach(), backend))

    thread = threading.Thread(target=run)
    thread.start()
    with ours:
        ours.recv(100)
        ours.sendall(b"exit 5")
        thread.join()
    assert codes == [5]


@pytest.mark.anyio
async def test_the_end_of_the_stream_is_the_end_of_the_process() -> None:
    ours, theirs = socket.socketpair()
    stream = ParentStream(UnixStream(theirs), leave)  # type: ignore[arg-type]
    with ours:
        ours.sendall(b"hello")
        assert await stream.receive() == b"hello"
    with pytest.raises(Left, match=str(ORPHANED)):
        await stream.receive()
    with pytest.raises(Left, match=str(ORPHANED)):
        await stream.send(b"is anybody there")
    await stream.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()
