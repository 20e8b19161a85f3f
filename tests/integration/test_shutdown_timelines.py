"""What follows a signal in each shape of processes: who is refused, who finishes, and when it ends.

Signals while a server starts, and a second one while it leaves, are sent in ``test_shapes``.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.shapes import ADMIN, Holdings, Server, running, wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TWO = ("--data-parallel-size", "2")
SHAPES = {
    "one process": (),
    "separate": ("--separate-engine", "--backend", "trio"),
    "API servers": (*TWO, "--api-server-count", "2"),
}
SHUTDOWN_SECONDS = 6.0
PATIENCE = 20.0
"""For what remains to be done once the time of requests is up, on a busy machine."""
BODY: dict[str, Any] = {"model": "tiny", "prompt": "a", "ignore_eos": True, "temperature": 0}


@contextmanager
def frozen_stream(server: Server) -> Iterator[list[Any]]:
    """A stream under way that makes no progress; its events are complete when the block ends."""
    events: list[Any] = []

    def read() -> None:
        body = BODY | {"max_tokens": 200, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            datas = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
            events.extend(data if data == "[DONE]" else json.loads(data) for data in datas)

    assert httpx.post(f"{server.url}/pause?mode=keep", headers=ADMIN, timeout=30).status_code == 200
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    wait_until(lambda: num_under_way(server) == 1, 20, lambda: server.log)
    yield events
    thread.join(30)
    assert not thread.is_alive()


def num_under_way(server: Server) -> int:
    load = server.get("/load")
    return int(load["num_requests_running"] + load["num_requests_waiting"])


def ask(server: Server, max_tokens: int = 4) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/completions", json=BODY | {"max_tokens": max_tokens}, timeout=120)


@pytest.mark.parametrize("shape", SHAPES)
def test_under_load_new_requests_are_refused_and_the_others_have_their_time(
    byte_llama: Path, shape: str
) -> None:
    options = (*SHAPES[shape], "--shutdown-timeout", str(SHUTDOWN_SECONDS))
    with running(byte_llama, options) as (server,):
        holdings = Holdings.of([server])
        num_servers = 2 if shape == "API servers" else 1
        with frozen_stream(server) as events:
            began = time.monotonic()
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.log.count("draining: no new work") == num_servers, 30)
            refused = ask(server)
            ready = httpx.get(f"{server.url}/ready", timeout=30)
            assert (refused.status_code, ready.status_code) == (503, 503)
            assert int(refused.headers["Retry-After"]) > 0
            assert time.monotonic() - began < SHUTDOWN_SECONDS, "else this says nothing"
        assert time.monotonic() - began >= SHUTDOWN_SECONDS, "it had its time"
        assert events[-2]["error"]["code"] == "request_aborted"
        assert events[-1] == "[DONE]"
        assert server.wait(PATIENCE) == 0, server.log
        assert time.monotonic() - began < SHUTDOWN_SECONDS + PATIENCE
        assert holdings.left() == []


@pytest.mark.parametrize("shape", ["one process", "API servers"])
def test_who_has_nothing_to_do_ends_at_once(byte_llama: Path, shape: str) -> None:
    with running(byte_llama, (*SHAPES[shape], "--shutdown-timeout", "300")) as (server,):
        holdings = Holdings.of([server])
        server.signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0, server.log
        assert holdings.left() == []


def test_engines_of_another_machine_are_replaced_and_leave_in_order(byte_llama: Path) -> None:
    port = ("--data-parallel-rpc-port", str(free_port(3)), *TWO, "--data-parallel-size-local", "1")
    with running(byte_llama, port, ("--headless", *port, "--data-parallel-start-rank", "1")) as (head, node):
        holdings = Holdings.of([head, node])
        engines = set(node.descendants())
        body = {"rank": 1, "timeout": 10}
        answer = httpx.post(f"{head.url}/restart_rank", json=body, headers=ADMIN, timeout=180)
        assert answer.status_code == 200, answer.text
        assert not engines & set(node.descendants()), "it is another process"
        roll(head)
        node.signal(signal.SIGTERM)
        assert node.wait() == 0, node.log
        wait_until(lambda: head.ranks() == ["ready", "left"], 30, lambda: head.log)
        assert head.get("/health")["ranks"][1]["cause"].endswith("has left: SIGTERM")
        assert "ERROR" not in head.log, "it was told to"
        assert ask(head).status_code == 200
        head.signal(signal.SIGTERM)
        assert head.wait() == 0, head.log
        assert holdings.left() == []


def roll(head: Server) -> None:
    """Replace all engines, here and there, while requests are answered."""
    head.signal(signal.SIGHUP)
    while "all engines are restarted" not in head.log:
        assert ask(head).status_code == 200
        assert "are not restarted" not in head.log
