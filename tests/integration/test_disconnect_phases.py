"""A client that leaves, in each phase, with one slot: it is free with the end of the step under way.

That step is held, so that nothing is left to chance, and nothing else is sent. ``python -m bench.disconnect``
does the same to a real model, from outside.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.fakes import FakeRunner, alphabet, fake_client, write_byte_model
from tests.triolet.web.serving import Running, request_bytes, serving

from triolet import Engine
from triolet.plan import StepPlan
from triolet.request import Request

pytestmark = pytest.mark.anyio
ROUNDS = 3
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "'
TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
TALK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5000}


@dataclass(frozen=True)
class Phase:
    """The client leaves in the step after so many. ``marker`` is in what it reads before."""

    body: dict[str, Any]
    num_steps: int
    marker: bytes = b""
    is_queued: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if "messages" in self.body else "/v1/completions"


PHASES = {
    "queued": Phase({"prompt": "ab", "max_tokens": 5000}, 2, is_queued=True),
    "first step of the prompt": Phase({"prompt": "a" * 200}, 0),
    "prefill": Phase({"prompt": "a" * 200}, 4),
    "decoding": Phase({"prompt": "ab", "max_tokens": 5000}, 7),
    "between tokens": Phase(TALK, 6, b'"content":"c'),
    "answer being written": Phase(TALK | {"logprobs": True, "top_logprobs": 20}, 900, b'"content":"c'),
    "tool call": Phase(TALK | {"tools": TOOLS}, 160, b'"arguments":"{'),
}


class HeldRunner(FakeRunner):
    """Writes a call where there are tools, and can be told to hold the step after so many."""

    def __init__(self) -> None:
        super().__init__(num_blocks=2048, max_model_len=8192, next_token=_token, fail=self._hold)
        self._hold_after = -1

    def hold_after(self, num_steps: int) -> None:
        self._hold_after = self.num_steps + num_steps
        if num_steps == 0:
            self.gate.clear()

    def _hold(self, plan: StepPlan) -> None:
        if self.num_steps + 1 == self._hold_after:
            self.gate.clear()


def _token(request: Request, position: int) -> int:
    written = position - len(request.prompt_token_ids)
    is_call = bytes(request.prompt_token_ids).startswith(b"<tool_call>")
    return ord(CALL[written]) if is_call and written < len(CALL) else alphabet(request, position)


@pytest.mark.parametrize("name", PHASES)
async def test_the_slot_is_free_with_the_end_of_the_step(
    anyio_backend_name: str, tmp_path: Path, name: str
) -> None:
    phase, runner = PHASES[name], HeldRunner()
    engine = Engine(
        model=str(write_byte_model(tmp_path / "bytes", chat_template=TEMPLATE)),
        max_num_seqs=1,
        max_num_batched_tokens=16,
        enable_prefix_caching=False,
        client_factory=fake_client(runner),
    )
    async with serving(engine, anyio_backend_name) as running:
        for index in range(ROUNDS):
            await leave_once(running, engine, runner, phase, is_abrupt=bool(index % 2))
    statistics = engine.statistics()
    num_left = ROUNDS * (1 + phase.is_queued)
    assert statistics.outcomes == {"abort": num_left}
    assert sum(statistics.ranks[0].cancel_latency.counts) == num_left


async def leave_once(
    running: Running, engine: Engine, runner: HeldRunner, phase: Phase, *, is_abrupt: bool
) -> None:
    runner.hold_after(phase.num_steps)
    clients = [connect(running, phase)]
    if phase.is_queued:
        await until(lambda: engine.statistics().scheduler.num_running == 1)
        clients.append(connect(running, phase))
        await until(lambda: engine.statistics().scheduler.num_waiting == 1)
    await until(runner.is_held.is_set)
    if phase.marker:
        await read(clients[-1], phase.marker)
    num_steps = runner.num_steps
    leave(clients.pop(), is_abrupt=is_abrupt)
    if phase.is_queued:
        await until(lambda: engine.statistics().scheduler.num_waiting == 0)
        assert engine.statistics().scheduler.num_running == 1
        leave(clients.pop(), is_abrupt=is_abrupt)
    await until(lambda: engine.statistics().scheduler.num_running == 0)
    runner.gate.set()
    await until(lambda: is_free(engine))
    await engine.wait_idle()
    assert runner.num_steps == num_steps + 1


def connect(running: Running, phase: Phase) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.sendall(request_bytes(phase.path, phase.body))
    client.setblocking(False)
    return client


async def read(client: socket.socket, marker: bytes) -> None:
    """Read as far as this, and no further."""
    received = b""
    with anyio.fail_after(30):
        while marker not in received:
            await anyio.wait_readable(client)
            received += client.recv(512)


def leave(client: socket.socket, *, is_abrupt: bool) -> None:
    if is_abrupt:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not is_so():  # noqa: ASYNC110 - the engine tells its statistics only when asked
            await anyio.sleep(0.001)


def is_free(engine: Engine) -> bool:
    scheduler = engine.statistics().scheduler
    return scheduler.num_running == scheduler.num_waiting == 0 and scheduler.kv_usage == 0
