"""Every shape of processes for real: the same answers as one process, and nothing left when it has ended."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.shapes import (
    ADMIN,
    Holdings,
    Server,
    ask_all,
    ended_by,
    processes,
    running,
    stream,
    wait_until,
)
from tests.ports import free_port

from triolet import LLM, SamplingParams

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BODIES: list[dict[str, Any]] = [
    {
        "prompt": f"Story {number}: once upon a time",
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 0.0 if number % 2 else 1.0,
        "seed": number,
    }
    for number in range(50)
]
TWO = ("--data-parallel-size", "2")
ONE_ENGINE = ("--api-server-count", "2")
"""The API servers and their launcher, where engines are not what is tested."""
SHUTDOWN_SECONDS = 1
UNDER_WAY = ("queued", "in_progress")


def machines(*head: str, num_local: int = 1) -> list[tuple[str, ...]]:
    """The options of a head with ``num_local`` of two ranks, and of a machine with the others."""
    port = ("--data-parallel-rpc-port", str(free_port(3)), *TWO)
    local = ("--data-parallel-size-local", str(num_local))
    rest = ("--data-parallel-start-rank", str(num_local), "--data-parallel-size-local", str(2 - num_local))
    return [(*port, *local, *head), ("--headless", *port, *rest)]


SHAPES: dict[str, list[tuple[str, ...]]] = {
    "separate": [("--separate-engine",)],
    "internal": [TWO],
    "external": [(*TWO, "--data-parallel-rank", "1", "--separate-engine", "--backend", "trio")],
    "hybrid": [
        ("--data-parallel-size", "4", "--data-parallel-hybrid-lb", "--data-parallel-size-local", "2",
         "--data-parallel-start-rank", "2", "--backend", "trio"),
    ],
    "API servers": [(*TWO, "--api-server-count", "2")],
}  # fmt: skip


@pytest.fixture(scope="module")
def expected(byte_llama: Path) -> list[str]:
    """What one process answers."""
    with running(byte_llama, ()) as (server,):
        return ask_all(server, BODIES)


def stop_gently(servers: Sequence[Server]) -> None:
    """SIGTERM under load: what is under way finishes, all processes end well, and nothing is left."""
    holdings = Holdings.of(servers)
    assert len(holdings.pids) > 1 or servers[0].url is None
    with stream(servers[0]) as first, stream(servers[0], prompt="b") as second:
        servers[0].signal(signal.SIGTERM)
    assert (ended_by(first), ended_by(second)) == ("length", "length")
    for server in servers:
        assert server.wait() == 0, server.log
    assert holdings.left() == []


def stop_idle(servers: Sequence[Server]) -> None:
    """SIGTERM where nothing is under way: none of the time for that is taken."""
    holdings = Holdings.of(servers)
    servers[0].signal(signal.SIGTERM)
    for server in servers:
        assert server.wait(30) == 0, server.log
    assert holdings.left() == []


def stop_late(servers: Sequence[Server]) -> None:
    """SIGTERM under a load that does not end: it is told so once its time is over."""
    holdings = Holdings.of(servers)
    with stream(servers[0], max_tokens=200) as events:
        frozen = httpx.post(f"{servers[0].url}/pause?mode=keep", headers=ADMIN, timeout=30)
        assert frozen.status_code == 200
        began = time.monotonic()
        servers[0].signal(signal.SIGTERM)
    assert ended_by(events) in ("request_aborted", "length")
    for server in servers:
        assert server.wait() == 0, server.log
    assert time.monotonic() - began < SHUTDOWN_SECONDS + 15
    assert holdings.left() == []


def stop_at_once(servers: Sequence[Server]) -> None:
    """A second signal while the first is being obeyed."""
    (server,) = servers
    holdings = Holdings.of(servers)
    httpx.post(f"{server.url}/pause?mode=keep", headers=ADMIN, timeout=30)
    waiting = threading.Thread(target=ask_quietly, args=(server,), daemon=True)
    waiting.start()
    wait_until(lambda: server.get("/load")["num_requests_waiting"] == 1, 30)
    server.signal(signal.SIGTERM)
    server.wait_line("draining")
    server.signal(signal.SIGTERM)
    assert server.wait(30) == 128 + signal.SIGTERM
    wait_until(lambda: not holdings.left(), 30, lambda: str(holdings.left()))
    waiting.join(10)


def ask_quietly(server: Server) -> None:
    """Ask, whatever becomes of it."""
    with suppress(httpx.TransportError):
        httpx.post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "a"}, timeout=30)


@pytest.mark.parametrize(
    ("shape", "stop"),
    [
        ("separate", stop_gently),
        ("external", stop_idle),
        ("hybrid", stop_at_once),
        ("machines with API servers", stop_late),
    ],
)
def test_a_shape_answers_as_one_process_and_leaves_nothing(
    byte_llama: Path, expected: list[str], shape: str, stop: Callable[[Sequence[Server]], None]
) -> None:
    """One of them with a log that cannot be written."""
    head = patience(stop)
    options = [(*SHAPES[shape][0], *head)] if shape in SHAPES else machines(*head, *ONE_ENGINE)
    with running(byte_llama, *options, is_disk_full=shape == "separate") as servers:
        assert ask_all(servers[0], BODIES) == expected
        for rank in httpx.get(f"{servers[0].url}/health", timeout=30).json()["ranks"]:
            ask_rank(servers[0], rank["rank"], expected)
        stop(servers)


def patience(stop: Callable[[Sequence[Server]], None]) -> tuple[str, str]:
    """What a server has to be told for a way to stop it."""
    return ("--shutdown-timeout", str(SHUTDOWN_SECONDS) if stop is stop_late else "30")


def ask_rank(server: Server, rank: int, expected: list[str]) -> None:
    """Every rank answers alike."""
    answer = httpx.post(
        f"{server.url}/v1/completions", json={"model": "tiny", **BODIES[rank]},
        headers={"X-data-parallel-rank": str(rank)}, timeout=30,
    )  # fmt: skip
    assert answer.json()["choices"][0]["text"] == expected[rank]


def test_api_servers_share_engines_and_numbers(byte_llama: Path, expected: list[str]) -> None:
    with running(byte_llama, *SHAPES["API servers"]) as (server,):
        assert ask_all(server, BODIES) == expected

        def scrape() -> dict[str, float]:
            text = httpx.get(f"{server.url}/metrics", timeout=30).text  # a connection of its own each time
            found = re.findall(r"^(triolet_\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)
            return {name.replace('model_name="tiny"', ""): float(value) for name, value in found}

        results: list[dict[str, float]] = []
        threads = [threading.Thread(target=lambda: results.append(scrape())) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in results:
            assert one['triolet_request_success_total{finished_reason="length",}'] == 50
            assert one["triolet_generation_tokens_total{}"] == 50 * 24
            assert one["triolet_e2e_request_latency_seconds_count{}"] == 50
            cores = [one[f'triolet_request_generation_tokens_count{{engine="{rank}",}}'] for rank in (0, 1)]
            assert sum(cores) == 50
            assert min(cores) >= 10, "both have had their share"
        pauses = httpx.post(f"{server.url}/pause", headers=ADMIN, timeout=30)
        assert pauses.status_code == 200
        told = [httpx.get(f"{server.url}/is_paused", headers=ADMIN, timeout=30).json() for _ in range(8)]
        assert told == [{"is_paused": True}] * 8, "at once, whoever answers"
        httpx.post(f"{server.url}/resume", headers=ADMIN, timeout=30)
        replace_engines(server, expected)
        stop_gently([server])


def replace_engines(server: Server, expected: list[str]) -> None:
    """No request is refused while one engine after the other is replaced."""
    before = processes(server, b"engine_process")
    server.signal(signal.SIGHUP)
    while "all engines are restarted" not in server.log:
        assert ask_all(server, BODIES[:8]) == expected[:8]
        assert "are not restarted" not in server.log
    assert not set(processes(server, b"engine_process")) & set(before)


@pytest.mark.parametrize("shape", ["separate", "API servers", "headless"])
def test_a_signal_while_it_starts_ends_it(byte_llama: Path, shape: str) -> None:
    options = SHAPES[shape] if shape in SHAPES else machines()[1:]
    with running(byte_llama, *options, is_ready=False) as (server,):
        wait_until(lambda: bool(processes(server, b"triolet.cluster.child")), 30, lambda: server.log)
        holdings = Holdings.of([server])
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.log
        assert holdings.left() == []


@pytest.mark.parametrize("victim", ["launcher", "API server", "engine"])
def test_the_loss_of_a_process_that_all_need_ends_everything(byte_llama: Path, victim: str) -> None:
    with running(byte_llama, (*ONE_ENGINE, "--engine-restart-budget", "0")) as (server,):
        holdings = Holdings.of([server])
        role = {"launcher": b"", "API server": b"api_process", "engine": b"engine_process"}[victim]
        pid = processes(server, role)[0] if role else server.process.pid
        os.kill(pid, signal.SIGKILL)
        code = server.wait(30)
        assert code == (-signal.SIGKILL if victim == "launcher" else 1)
        wait_until(lambda: not holdings.left(), 30, lambda: str(holdings.left()))
        if victim != "launcher":
            assert re.search(rf"the server has stopped: {victim} \d .*killed by SIGKILL", server.log)


def test_a_response_in_the_background_is_followed_through_any_api_server(byte_llama: Path) -> None:
    """Each connection of its own comes to one of two."""
    with running(byte_llama, ONE_ENGINE) as (server,):
        url = f"{server.url}/v1/responses"
        body = {"input": "Tell.", "background": True, "temperature": 0}
        first = httpx.post(url, json=body | {"max_output_tokens": 30, "stream": True}, timeout=60)
        response_id = re.findall(r'"id":"(resp_\w+)"', first.text)[0]
        for _ in range(8):
            kept = httpx.get(f"{url}/{response_id}", timeout=30).json()
            assert (kept["status"], kept["usage"]["output_tokens"]) == ("incomplete", 30)
            again = httpx.get(f"{url}/{response_id}?stream=true", timeout=30).text
            assert again.replace(": ping\n\n", "") == first.text.replace(": ping\n\n", "")
        for _ in range(4):
            begun = httpx.post(url, json=body, timeout=30).json()
            assert begun["status"] == "queued"
            ended = httpx.post(f"{url}/{begun['id']}/cancel", timeout=30).json()
            assert ended["status"] in ("cancelled", "incomplete"), "it may have come to its end before"
            while (last := httpx.get(f"{url}/{begun['id']}", timeout=30).json())["status"] in UNDER_WAY:
                pass
            assert last["status"] in ("cancelled", "incomplete")
        gone = httpx.get(f"{url}/resp_none?stream=true", timeout=30)
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")


def test_a_lost_head_ends_the_engines_of_other_machines_and_a_lost_machine_degrades_the_head(
    byte_llama: Path, expected: list[str]
) -> None:
    shapes = machines()
    with running(byte_llama, *shapes) as (head, node):
        assert ask_all(head, BODIES) == expected
        node.signal(signal.SIGKILL)
        node.wait()
        wait_until(lambda: head.get("/health")["state"] == "degraded", 30, lambda: head.log)
        assert ask_all(head, BODIES[:8]) == expected[:8]
        with running(byte_llama, shapes[1], is_ready=False) as (again,):
            wait_until(lambda: set(head.ranks()) == {"ready"}, 60, lambda: head.log + again.log)
            holdings = Holdings.of([again])
            head.signal(signal.SIGKILL)
            assert again.wait(30) == 1
            assert "the head at tcp:127.0.0.1" in again.log
            assert "is lost: " in again.log
            assert holdings.left() == []


def test_other_options_than_the_heads_and_a_missing_secret_are_usage_errors(byte_llama: Path) -> None:
    head, node = machines()
    with running(byte_llama, head, (*node, "--block-size", "64"), is_ready=False) as (_, refused):
        assert refused.wait(60) == 2, refused.log
        assert "block_size is 32 at the head, 64 at the node" in refused.log
    with running(byte_llama, node, is_ready=False, environment={"TRIOLET_CLUSTER_SECRET": ""}) as (bare,):
        assert bare.wait() == 2
        assert "TRIOLET_CLUSTER_SECRET" in bare.log


def test_an_option_that_an_engine_finds_wrong_is_a_usage_error(byte_llama: Path) -> None:
    with running(byte_llama, (*ONE_ENGINE, "--max-model-len", "100000"), is_ready=False) as (server,):
        assert server.wait(120) == 2, server.log
        assert "max_model_len" in server.lines[-1]


@pytest.fixture(scope="module")
def expected_of_real_model(smollm2_path: Path) -> list[str]:
    prompts = [str(body["prompt"]) for body in BODIES]
    with LLM(model=str(smollm2_path), num_threads=1, max_model_len=1024, num_kv_blocks=64) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=4, temperature=0))
    return [output.outputs[0].text for output in outputs]


@pytest.mark.model
@pytest.mark.parametrize(("shape", "stop"), [("internal", stop_late), ("API servers", stop_at_once)])
def test_a_real_model_answers_the_same_in_any_shape(
    smollm2_path: Path,
    expected_of_real_model: list[str],
    shape: str,
    stop: Callable[[Sequence[Server]], None],
) -> None:
    options = (*SHAPES[shape][0], *patience(stop), "--max-model-len", "1024")
    with running(smollm2_path, options) as servers:
        bodies = [{"prompt": body["prompt"], "max_tokens": 4, "temperature": 0} for body in BODIES]
        assert ask_all(servers[0], bodies) == expected_of_real_model
        stop(servers)
