"""Whatever is cancelled and however the stream is torn, every message arrives once, whole and in order."""

from __future__ import annotations

import random

import anyio
import pytest
from tests.triolet.cluster.torn_streams import torn_pair

from triolet.cluster.link import Link, LinkClosedError
from triolet.cluster.messages import Message, Phase

pytestmark = pytest.mark.anyio

NUM_MESSAGES = 150


async def post_all(source: random.Random, link: Link, messages: list[Message]) -> None:
    for message in messages:
        if source.random() < 0.5:
            link.post(message)
        else:
            with anyio.CancelScope() as scope:
                if source.random() < 0.5:
                    scope.cancel()
                await link.send(message)
        if source.random() < 0.2:
            await anyio.lowlevel.checkpoint()


async def receive_all(source: random.Random, link: Link, messages: list[Message]) -> None:
    while len(messages) < NUM_MESSAGES:
        with anyio.CancelScope() as scope:
            if source.random() < 0.3:
                scope.cancel()
            messages.append(await link.receive())


@pytest.mark.parametrize("seed", range(12))
async def test_every_message_arrives_once_and_in_order(seed: int) -> None:
    source = random.Random(seed)
    links = [Link(stream, name="torn", liveness_timeout=60) for stream in torn_pair(source)]
    sent: list[list[Message]] = [
        [Phase(f"{index} " + "x" * source.choice((0, 10, 5000))) for index in range(NUM_MESSAGES)]
        for _ in links
    ]
    received: list[list[Message]] = [[], []]
    with anyio.fail_after(30):
        async with anyio.create_task_group() as running:
            for link in links:
                running.start_soon(link.run)
            async with anyio.create_task_group() as tasks:
                for side, link in enumerate(links):
                    tasks.start_soon(post_all, source, link, sent[side])
                    tasks.start_soon(receive_all, source, link, received[1 - side])
            for link in links:
                link.close("all have arrived")
    assert received == sent


@pytest.mark.parametrize("seed", range(12))
async def test_a_link_cut_anywhere_delivers_a_beginning(seed: int) -> None:
    """What arrives before the end is what was sent, without a gap."""
    source = random.Random(seed)
    here, there = (Link(stream, name="torn") for stream in torn_pair(source))
    sent: list[Message] = [Phase(f"{index} " + "x" * 100) for index in range(NUM_MESSAGES)]
    received: list[Message] = []

    async def cut() -> None:
        for _ in range(source.randint(0, 200)):
            await anyio.lowlevel.checkpoint()
        here.close("cut")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(here.run)
            tasks.start_soon(there.run)
            tasks.start_soon(cut)
            for message in sent:
                here.post(message)
            with pytest.raises(LinkClosedError, match="closed by the other side"):
                await receive_until_closed(there, received)
    assert received == sent[: len(received)]


async def receive_until_closed(link: Link, messages: list[Message]) -> None:
    while True:
        messages.append(await link.receive())
