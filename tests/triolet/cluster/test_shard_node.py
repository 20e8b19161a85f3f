"""Shards on a machine without their engine: which they are, and how it ends with them."""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream
from tests.triolet.cluster.fake_processes import FakeChild, FakeStarter

from triolet.args import ServeArgs
from triolet.cluster import shard_node
from triolet.cluster.link import Link
from triolet.cluster.messages import Start
from triolet.errors import EngineDeadError

pytestmark = pytest.mark.anyio

ARGS = ServeArgs(
    tensor_parallel_size=4, nnodes=2, node_rank=1, master_addr="127.0.0.1", headless=True, num_threads=4
)


def starter_of(monkeypatch: pytest.MonkeyPatch, role: Any) -> FakeStarter:
    async def find(args: ServeArgs) -> ServeArgs:
        return replace(args, model="/where/it/is")

    starter = FakeStarter(role)
    monkeypatch.setattr(shard_node, "find_models", find)
    monkeypatch.setattr(shard_node, "SubprocessStarter", lambda **_: starter)
    return starter


async def test_it_has_the_later_shards_and_ends_with_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def role(child: FakeChild, stream: ByteStream) -> int:
        link = Link(stream, name="parent")
        start = await link.receive()
        assert isinstance(start, Start)
        assert start.args["model"] == "/where/it/is", "found once, for all of them"
        return 0

    starter = starter_of(monkeypatch, role)
    with anyio.fail_after(30):
        assert await shard_node.serve_shards(ARGS) == 0
    assert sorted(child.name for child in starter.children) == ["shard 2 of engine 0", "shard 3 of engine 0"]
    assert "shards 2, 3 of engine 0, which is at 127.0.0.1:29501" in caplog.text


async def test_one_that_dies_ends_the_others_and_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def role(child: FakeChild, stream: ByteStream) -> int:
        if child.name.startswith("shard 3"):
            return 7
        await anyio.sleep_forever()
        return 0

    starter = starter_of(monkeypatch, role)
    with pytest.raises(EngineDeadError, match="shard 3 of engine 0 died: exit code 7"), anyio.fail_after(30):
        await shard_node.serve_shards(ARGS)
    assert all(child.status is not None for child in starter.children)


async def test_a_signal_ends_all_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    num_started = 0

    async def role(child: FakeChild, stream: ByteStream) -> int:
        nonlocal num_started
        num_started += 1
        if num_started == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        await anyio.sleep_forever()
        return 0

    starter = starter_of(monkeypatch, role)
    with anyio.fail_after(30):
        assert await shard_node.serve_shards(ARGS) == 0
    assert all(child.status is not None for child in starter.children)
