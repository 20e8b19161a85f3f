"""Hosts on one machine: network namespaces joined by a switch, and servers that run in them.

Needs root, and a kernel that lets it make namespaces.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Host", "Network", "why_not"]

SERVER = "import sys; from triolet.cli import serve_main; sys.exit(serve_main())"


def why_not() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    name = f"triolet-try-{os.getpid()}"
    try:
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the command ip is not installed"
    if done.returncode:
        return f"network namespaces are not allowed: {done.stderr.strip()}"
    _ip("netns", "del", name)
    return None


class Host:
    """A host with the address ``address``; what runs on it writes to ``log``."""

    def __init__(self, name: str, address: str, folder: Path, network: Network) -> None:
        self.name = name
        self.address = address
        self.process: subprocess.Popen[bytes] | None = None
        self._log = folder / f"{name}.log"
        self._network = network
        self._others: list[subprocess.Popen[bytes]] = []

    @property
    def said(self) -> str:
        """What the server has written since it was started the last time."""
        return self._log.read_text()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def serve(self, arguments: Sequence[str], **environment: str) -> None:
        """Start the server here."""
        with self._log.open("wb") as log:
            self.process = self._start(SERVER, arguments, log, environment)

    def try_to_serve(
        self, arguments: Sequence[str], *, code: str = SERVER, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start another one beside it, which is not expected to last; its output is piped."""
        process = self._start(code, arguments, subprocess.PIPE, environment)
        self._others.append(process)
        return process

    def _start(
        self, code: str, arguments: Sequence[str], output: Any, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", self._network.namespace(self.name)]
        search_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return subprocess.Popen(
            [*command, sys.executable, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": search_path, self._network.mark: "1", **environment},
            start_new_session=True,
        )

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self._network.namespace("switch"), "link", "set", self.name, "down")

    def mend(self) -> None:
        _ip("-n", self._network.namespace("switch"), "link", "set", self.name, "up")

    def wait(self, seconds: float) -> int:
        """The exit code of the server, which has so long to end."""
        assert self.process is not None
        return self.process.wait(seconds)

    def kill(self, signal_number: int = signal.SIGKILL) -> None:
        """Signal the server alone, and not its engines."""
        assert self.process is not None
        self.process.send_signal(signal_number)

    def close(self) -> None:
        for process in [self.process, *self._others]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait(10)


class Network:
    """Hosts that reach each other through a switch. ``mark`` is in the environment of all that run there."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._prefix = f"triolet-{os.getpid()}"
        self.mark = f"TRIOLET_TEST_HOSTS_{os.getpid()}"
        self.hosts = [
            Host(name, f"10.77.0.{number}", folder, self) for number, name in enumerate(names, start=1)
        ]

    def namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Make it; leave nothing of it, nor of what runs there."""
        try:
            self._make()
            yield
        finally:
            for host in self.hosts:
                host.close()
            for name in ("switch", *(host.name for host in self.hosts)):
                subprocess.run(["ip", "netns", "del", self.namespace(name)], capture_output=True, check=False)

    def processes(self) -> list[str]:
        """The command lines of all that run on the hosts."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
        return found

    def wait_empty(self, seconds: float) -> list[str]:
        """What still runs after so long; nothing if all has ended."""
        deadline = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _make(self) -> None:
        switch = self.namespace("switch")
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in self.hosts:
            name = self.namespace(host.name)
            _ip("netns", "add", name)
            _ip(
                "-n", switch, "link", "add", host.name, "type", "veth",
                "peer", "name", "eth0", "netns", name,
            )  # fmt: skip
            _ip("-n", switch, "link", "set", host.name, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)
