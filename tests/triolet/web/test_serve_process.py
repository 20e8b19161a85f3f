"""The server as a process: signals and exit codes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.triolet.web.serving import events_of

ROOT = Path(__file__).parents[3]
BODY = json.dumps({"prompt": "hi", "max_tokens": 99, "stream": True})
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("backend", ["asyncio", "trio"])]


class Launched:
    """A server process under test."""

    def __init__(self, backend: str, *options: str) -> None:
        path = os.pathsep.join(str(ROOT / name) for name in ("src", "kernels", "."))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.triolet.web.launch", backend, *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.line().removeprefix("port "))
        self._connections: list[http.client.HTTPConnection] = []

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def request(self, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        self._connections.append(connection)
        connection.request(method, path, body)
        return connection.getresponse()

    def ask(self, body: str = BODY) -> http.client.HTTPResponse:
        return self.request("POST", "/v1/completions", body)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, list[str]]:
        """The exit code and the lines of the log."""
        _, log = self.process.communicate(timeout=20)
        return self.process.returncode, log.splitlines()


@contextmanager
def launched(backend: str, *options: str) -> Iterator[Launched]:
    server = Launched(backend, *options)
    try:
        yield server
    finally:
        server.close()


def test_the_lines_for_the_user_come_once_it_is_ready(backend: str) -> None:
    with launched(backend) as server:
        assert f"ready at http://127.0.0.1:{server.port}" in server.line()
        command = server.line()
        assert command.startswith("curl ")
        answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=20)
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"]
        server.process.send_signal(signal.SIGINT)
        code, log = server.end()
    assert code == 0
    assert "Traceback" not in "\n".join(log)


def test_the_command_for_the_user_takes_the_key_from_the_environment(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIOLET_API_KEY", "s3cret")
    with launched(backend) as server:
        server.line()
        command = server.line()
        assert "s3cret" not in command
        answer = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=20)
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_a_signal_drains_and_the_rest_is_told(backend: str) -> None:
    with launched(backend, "hold_at=3", "shutdown_timeout=0.2") as server:
        server.line()
        response = server.ask()
        server.process.send_signal(signal.SIGTERM)
        events = events_of(response.read().decode())
        code, log = server.end()
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == "request_aborted"
    assert code == 0
    assert "Traceback" not in "\n".join(log)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(backend: str, second: signal.Signals) -> None:
    with launched(backend, "hold_at=3", "shutdown_timeout=600") as server:
        server.line()
        response = server.ask()
        server.process.send_signal(signal.SIGTERM)
        assert wait_until_unready(server)
        server.process.send_signal(second)
        code, _ = server.end()
        response.close()
    assert code == 128 + second


def wait_until_unready(server: Launched) -> bool:
    while True:
        with server.request("GET", "/ready") as response:
            if response.status == 503:
                return True


def test_a_dead_engine_is_a_failure_with_its_cause_last(backend: str) -> None:
    with launched(backend) as server:
        server.line()
        with server.ask(json.dumps({"prompt": "die"})) as response:
            assert response.status == 503
        code, log = server.end()
    assert code == 1
    assert log[-1] == "CRITICAL the server has stopped: the device is on fire"


def test_a_model_that_cannot_be_loaded_is_a_failure(backend: str) -> None:
    with launched(backend, "is_broken=1") as server:
        code, log = server.end()
    assert code == 1
    assert log[-1] == "CRITICAL the server has stopped: no such model"


def test_a_reader_that_stopped_reading_is_left_behind(backend: str) -> None:
    with launched(backend, "is_endless=1", "shutdown_timeout=0.1") as server:
        server.line()
        response: Any = server.ask(BODY.replace("99", "999999999"))
        assert response.read(10)
        server.process.send_signal(signal.SIGTERM)
        code, _ = server.end()
        response.close()
    assert code == 0
