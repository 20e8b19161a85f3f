"""Servers of any shape as their users start them, what they hold of the system, and how they are asked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

__all__ = [
    "ADMIN",
    "Holdings",
    "Server",
    "ask_all",
    "ended_by",
    "processes",
    "running",
    "stream",
    "wait_until",
]

ROOT = Path(__file__).parents[2]
ADMIN = {"Authorization": "Bearer root"}
LAST_LINES_SECONDS = 10.0
"""For what has been written to be read, once a process has ended."""
SECRET = "known to all machines of this test"


@dataclass
class Server:
    """One process that was started, with all below it. ``url`` is None where it has no HTTP."""

    process: subprocess.Popen[str]
    url: str | None = None
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())

    @property
    def log(self) -> str:
        """What it has written so far."""
        return "\n".join(self.lines)

    def wait_line(self, pattern: str, seconds: float = 120.0) -> re.Match[str]:
        """The first line that matches."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            has_ended = not self.reader.is_alive()  # before the last look
            found.extend(match for line in list(self.lines) if (match := re.search(pattern, line)))
            return bool(found) or has_ended

        wait_until(look, seconds, lambda: f"no line {pattern} in:\n{self.log}")
        assert found, f"it ended without a line {pattern}:\n{self.log}"
        return found[0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code; the log is complete then, unless processes that it has left behind hold it open."""
        try:
            code = self.process.wait(seconds)
            self.reader.join(LAST_LINES_SECONDS)
            return code
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {seconds:g} s:\n{self.log}") from None

    def descendants(self) -> list[int]:
        """The ids of all processes below it."""
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    found += map(int, task.read_text().split())
        return found[1:]

    def ranks(self) -> list[str]:
        """The states of its ranks."""
        return [rank["state"] for rank in self.get("/health")["ranks"]]

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=30).json()


@dataclass(frozen=True)
class Holdings:
    """What processes hold that could be left behind: themselves, sockets with names, ports."""

    pids: frozenset[int]
    names: frozenset[str]
    ports: frozenset[int]

    @classmethod
    def of(cls, servers: Sequence[Server]) -> Holdings:
        pids = frozenset(pid for server in servers for pid in (server.process.pid, *server.descendants()))
        inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
        names = {parts[7] for parts in _table("unix") if len(parts) > 7 and parts[6] in inodes}
        ports = {
            int(parts[1].rpartition(":")[2], 16)
            for parts in _table("tcp")
            if parts[9] in inodes and parts[3] == "0A"
        }
        return cls(pids, frozenset(name for name in names if name.startswith("@triolet-")), frozenset(ports))

    def left(self) -> list[str]:
        """What of it is still there."""
        names = {parts[7] for parts in _table("unix") if len(parts) > 7}
        return [
            *(f"process {pid}" for pid in self.pids if Path(f"/proc/{pid}").exists()),
            *(f"socket {name}" for name in self.names & names),
            *(f"port {port}" for port in self.ports if _is_listened_on(port)),
        ]


def _socket_inodes(pid: int) -> Iterator[str]:
    for entry in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            target = os.readlink(entry)
            if target.startswith("socket:["):
                yield target[8:-1]


def _table(name: str) -> list[list[str]]:
    return [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]


def _is_listened_on(port: int) -> bool:
    return any(parts[3] == "0A" and int(parts[1].rpartition(":")[2], 16) == port for parts in _table("tcp"))


def wait_until(
    condition: Callable[[], bool], seconds: float, describe: Callable[[], str] = lambda: "in vain"
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


def start(
    model: Path, *options: str, environment: dict[str, str] | None = None, is_disk_full: bool = False
) -> Server:
    """Start a server, and read what it writes from then on; no log where the disk is full."""
    search_path = os.pathsep.join(str(ROOT / name) for name in ("src", "kernels"))
    full = os.open("/dev/full", os.O_WRONLY)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "server", str(model), "--served-model-name", "tiny", "--num-threads", "1",
            "--num-kv-blocks", "64", "--admin-api-key", "root", *options,
        ],
        env=os.environ
        | {"PYTHONPATH": search_path, "TRIOLET_CLUSTER_SECRET": SECRET, "CUDA_VISIBLE_DEVICES": ""}
        # Each process would compile all modules anew, for a third of what its start takes.
        | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": ""}
        | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=full if is_disk_full else subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    os.close(full)
    return Server(process)


@contextmanager
def running(
    model: Path,
    *shapes: Sequence[str],
    is_ready: bool = True,
    environment: dict[str, str] | None = None,
    is_disk_full: bool = False,
) -> Iterator[list[Server]]:
    """Servers with these options, the first with HTTP; none of what they hold may be left afterwards."""
    servers = [
        start(
            model,
            *options,
            *(() if "--headless" in options else ("--port", "0")),
            environment=environment,
            is_disk_full=is_disk_full,
        )
        for options in shapes
    ]
    try:
        if is_ready:
            servers[0].url = servers[0].wait_line(r"is ready at (http://127\.0\.0\.1:\d+)")[1]
            wait_until(lambda: set(servers[0].ranks()) == {"ready"}, 60, lambda: servers[0].log)
        yield servers
    finally:
        for server in servers:
            for pid in (server.process.pid, *server.descendants()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.process.wait(10)


def ask_all(server: Server, bodies: Sequence[dict[str, Any]]) -> list[str]:
    """The answers to completions that are asked for at once."""
    with httpx.Client(
        base_url=server.url or "", timeout=60, limits=httpx.Limits(max_connections=64)
    ) as client:

        def ask(body: dict[str, Any]) -> str:
            answer = client.post("/v1/completions", json={"model": "tiny", **body})
            assert answer.status_code == 200, answer.text
            text: str = answer.json()["choices"][0]["text"]
            return text

        with ThreadPoolExecutor(len(bodies)) as pool:
            return list(pool.map(ask, bodies))


@contextmanager
def stream(
    server: Server, max_tokens: int = 100, prompt: str = "a", headers: Mapping[str, str] | None = None
) -> Iterator[list[Any]]:
    """A stream that has begun; its events are complete when the block ends."""
    events: list[Any] = []
    has_begun = threading.Event()
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True,
        "temperature": 0,
    }  # fmt: skip

    def read() -> None:
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=60
        ) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    events.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
                    has_begun.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert has_begun.wait(30)
    yield events
    thread.join(30)
    assert not thread.is_alive()


def ended_by(events: list[Any]) -> Any:
    """How a stream ended: a finish reason, or the code of its error."""
    assert events[-1] == "[DONE]"
    last = events[-2]
    return last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"]


def processes(server: Server, word: bytes) -> list[int]:
    """Those below a server whose command line has the word."""
    found = []
    for pid in server.descendants():
        with suppress(OSError):  # it has ended meanwhile
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
