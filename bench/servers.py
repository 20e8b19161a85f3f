"""Starts a server as a child process, waits until it answers, and stops it again.

A server is a name, a command and an address to poll; nothing here is particular to one of them but the
functions at the end, which say how triolet and its peers are started for a fair comparison.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

__all__ = [
    "RunningServer",
    "Server",
    "free_port",
    "llama_server",
    "running",
    "triolet_server",
    "vllm_server",
]

_STOP_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """How to start a server. ``ready_path`` answers 200 once it serves.

    ``ready_line``: what it also writes then, where it consists of several that answer, ready one by one.
    """

    name: str
    command: tuple[str, ...]
    port: int
    ready_path: str
    environment: dict[str, str] = field(default_factory=dict)
    ready_line: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers. ``seconds_to_ready`` counts from its start."""

    server: Server
    pid: int
    seconds_to_ready: float

    def resident_bytes(self) -> int:
        """Resident memory of the process and its descendants."""
        return sum(_resident_bytes(pid) for pid in _family(self.pid))

    def cpu_seconds(self) -> float:
        """CPU time of the process and its descendants, in steps of 10 ms."""
        return sum(_cpu_seconds(Path(f"/proc/{pid}/stat")) for pid in _family(self.pid))

    def main_thread_seconds(self) -> float:
        """CPU time of the process's first thread alone."""
        return _cpu_seconds(Path(f"/proc/{self.pid}/task/{self.pid}/stat"))


@contextmanager
def running(server: Server, *, log: Path, timeout: float = 180.0) -> Iterator[RunningServer]:
    """Start ``server``, its output going to ``log``; leaving the block stops it.

    Raises ``RuntimeError`` with the end of the log if it is not ready in time.
    """
    with log.open("wb") as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            server.command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **server.environment}
        )
        try:
            _wait_ready(server, process, log, started + timeout)
            yield RunningServer(server, process.pid, time.perf_counter() - started)
        finally:
            _stop(process)


def _wait_ready(server: Server, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    url = f"http://127.0.0.1:{server.port}{server.ready_path}"
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            with urlopen(url, timeout=2):
                if server.ready_line in log.read_text(errors="replace"):
                    return
        except (URLError, OSError):
            pass
        time.sleep(0.05)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise RuntimeError(f"{server.name} is not ready (exit code {process.poll()}):\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(relative for child in children for relative in _family(int(child)))]


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu_seconds(stat: Path) -> float:
    """Source: proc_pid_stat(5), fields 14 and 15; the name before them may hold anything."""
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def triolet_server(model: str, *, num_threads: int, num_slots: int, python: str = sys.executable) -> Server:
    """``python -m server`` on ``model``; ``num_slots`` sequences fit in a step."""
    port = free_port()
    command = (
        python, "-m", "server", model, "--port", str(port), "--num-threads", str(num_threads),
        "--max-num-seqs", str(num_slots), "--log-level", "warning",
    )  # fmt: skip
    return Server("triolet", command, port, "/ready")


def llama_server(
    binary: Path, model: Path, *, num_threads: int, num_slots: int, context: int = 1024
) -> Server:
    """llama.cpp's server with as many slots as clients, ``context`` tokens for each of them.

    It needs an HTTP thread for each open stream, and batches continuously by default.
    """
    port = free_port()
    command = (
        str(binary), "--model", str(model), "--port", str(port), "--threads", str(num_threads),
        "--threads-batch", str(num_threads), "--threads-http", str(num_slots + 16),
        "--parallel", str(num_slots), "--ctx-size", str(num_slots * context), "--no-webui",
    )  # fmt: skip
    return Server("llama-server", command, port, "/health")


def vllm_server(
    python: Path, model: Path, *, num_threads: int, num_slots: int, context: int = 1024
) -> Server:
    """vLLM on the CPU, by the interpreter it is installed for, on a directory of weights.

    Its threads have a core each, from the first one on; its KV cache takes no more than 4 GiB.
    """
    port = free_port()
    command = (
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
        "--port", str(port), "--max-num-seqs", str(num_slots), "--max-model-len", str(context),
        "--dtype", "bfloat16",
    )  # fmt: skip
    environment = {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",
    }
    return Server("vllm", command, port, "/health", environment)
