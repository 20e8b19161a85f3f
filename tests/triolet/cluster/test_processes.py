"""Child processes: how they start, how they end, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.leaks.census import child_processes
from tests.triolet.cluster.gone import is_gone

from triolet.cluster.processes import (
    API_KEY_VARIABLES,
    ChildProcess,
    ProcessSpec,
    SubprocessStarter,
    describe_exit,
)  # fmt: skip
from triolet.web.auth import ADMIN_ENVIRONMENT_VARIABLE, ENVIRONMENT_VARIABLE

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_file_left() -> Any:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


def spec(role: str, **options: Any) -> ProcessSpec:
    return ProcessSpec(name="child", role=f"tests.triolet.cluster.roles:{role}", **options)


class Started:
    """A child under way, and how it ended."""

    def __init__(self, anyio_backend: str) -> None:
        self.lines: list[str] = []
        self.starter = SubprocessStarter(backend=anyio_backend, on_line=self.lines.append)
        self.child: ChildProcess
        self.status: int | None = None

    async def run(self, spec: ProcessSpec, *, task_status: Any) -> None:
        self.status = await self.starter.run(spec, task_status=task_status)


async def run_child(
    backend: str, role: str, talk: Callable[[ChildProcess], Any] | None = None, **options: Any
) -> tuple[Started, ChildProcess]:
    started = Started(backend)
    async with anyio.create_task_group() as task_group:
        child: ChildProcess = await task_group.start(started.run, spec(role, **options))
        if talk is not None:
            await talk(child)
    await child.stream.aclose()
    return started, child


async def test_the_last_words_of_a_child_can_be_read_when_it_has_ended(anyio_backend: str) -> None:
    """Its parent may have had no time for them before: it may have been stopped meanwhile."""
    started = Started(anyio_backend)
    async with anyio.create_task_group() as task_group:
        child: ChildProcess = await task_group.start(started.run, spec("echo"))
        await child.stream.send(b"exit 3")
    async with child.stream:
        assert (await child.stream.receive()).startswith(str(child.pid).encode())


async def test_a_child_talks_with_its_parent_and_leaves_with_its_exit_code(anyio_backend: str) -> None:
    async def talk(child: ChildProcess) -> None:
        pid, parent, session = map(int, (await child.stream.receive()).split())
        assert (pid, parent, session) == (child.pid, os.getpid(), child.pid)
        await child.stream.send(b"hello")
        assert await child.stream.receive() == b"hello"
        await child.stream.send(b"exit 3")
        assert await child.wait() == 3

    started, child = await run_child(anyio_backend, "echo", talk)
    assert started.status == 3
    assert started.lines == []
    child.kill()  # nothing, once it has ended
    assert await child.wait() == 3


async def test_what_a_child_writes_is_passed_on_and_its_end_kept(anyio_backend: str) -> None:
    started, child = await run_child(anyio_backend, "write")
    assert started.lines == ["to stdout", *(f"line {number}" for number in range(30)), "no end"]
    assert child.last_lines == tuple(started.lines[-20:])
    assert started.status == -signal.SIGKILL


async def test_a_role_that_raises_shows_where_and_leaves_with_one(anyio_backend: str) -> None:
    started, _ = await run_child(anyio_backend, "fail")
    assert started.status == 1
    assert started.lines[-1] == "RuntimeError: what it says"


def test_secrets_are_left_out_of_the_environment_but_for_those_needed() -> None:
    ours = {
        "PATH": "/bin",
        "TRIOLET_CLUSTER_SECRET": "s",
        "TRIOLET_API_KEY": "k",
        "TRIOLET_ADMIN_API_KEY": "a",
    }
    engine = ProcessSpec(name="engine 0", role="r", environment={"OMP_NUM_THREADS": "1"})
    assert engine.whole_environment(ours) == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}
    api_server = ProcessSpec(name="API server 0", role="r", secrets=API_KEY_VARIABLES)
    assert api_server.whole_environment(ours) == {
        "PATH": "/bin", "TRIOLET_API_KEY": "k", "TRIOLET_ADMIN_API_KEY": "a",
    }  # fmt: skip
    assert API_KEY_VARIABLES == (ENVIRONMENT_VARIABLE, ADMIN_ENVIRONMENT_VARIABLE)


async def test_a_child_inherits_no_secret(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIOLET_CLUSTER_SECRET", "known to all machines")

    async def talk(child: ChildProcess) -> None:
        await child.stream.receive()
        environment = await anyio.Path(f"/proc/{child.pid}/environ").read_bytes()
        assert b"TRIOLET_CLUSTER_SECRET" not in environment
        assert b"PYTHONPATH" in environment
        await child.stream.send(b"exit 0")

    await run_child(anyio_backend, "echo", talk)


async def test_signals_for_the_whole_group_are_the_parents_affair(anyio_backend: str) -> None:
    async def talk(child: ChildProcess) -> None:
        await child.stream.receive()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            child.send_signal(signal_number)
        await child.stream.send(b"still here")
        assert await child.stream.receive() == b"still here"
        child.kill()

    started, _ = await run_child(anyio_backend, "echo", talk)
    assert started.status == -signal.SIGKILL


async def test_a_child_is_told_of_its_parents_end_by_the_link(anyio_backend: str) -> None:
    async def talk(child: ChildProcess) -> None:
        await child.stream.receive()
        await child.stream.aclose()

    started, _ = await run_child(anyio_backend, "echo", talk)
    assert started.status == 1


@pytest.mark.parametrize("role", ["echo", "spin"])
async def test_cancellation_kills_a_child(role: str, anyio_backend: str) -> None:
    async with anyio.create_task_group() as task_group:
        child: ChildProcess = await task_group.start(Started(anyio_backend).run, spec(role))
        await child.stream.receive()
        os.kill(child.pid, signal.SIGSTOP)
        task_group.cancel_scope.cancel()
    assert await child.wait() == -signal.SIGKILL
    assert child.pid not in child_processes()


async def test_what_a_child_has_started_ends_with_it(anyio_backend: str) -> None:
    async def talk(child: ChildProcess) -> None:
        grandchildren.append(int(await child.stream.receive()))
        await child.stream.send(b"exit")

    grandchildren: list[int] = []
    started, _ = await run_child(anyio_backend, "leave_one_behind", talk)
    assert started.status == 0
    assert await is_gone(grandchildren[0])


async def test_an_environment_and_files_are_handed_down(anyio_backend: str) -> None:
    reader, writer = os.pipe()
    try:
        started = Started(anyio_backend)
        given = spec("report", environment={"CHILDS_OWN": "yes"}, files=(writer,))
        async with anyio.create_task_group() as task_group:
            child: ChildProcess = await task_group.start(started.run, given)
            await child.stream.send(str(writer).encode())
        await child.stream.aclose()
        assert os.read(reader, 100) == b"yes"
    finally:
        os.close(reader)
        os.close(writer)


async def test_what_cannot_be_started_leaves_nothing(
    anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        await SubprocessStarter(backend=anyio_backend).run(spec("echo"))


def test_how_a_process_ended_is_said_in_words() -> None:
    assert describe_exit(0) == "exit code 0"
    assert describe_exit(-11) == "killed by SIGSEGV"
    assert describe_exit(-40) == "killed by signal 40"
