"""Logs of events: read from any number on, and never more of them than may be."""

from __future__ import annotations

import anyio
import pytest

from triolet.web.responses_log import EventLogs


def test_events_are_numbered_and_comments_are_not_kept() -> None:
    logs = EventLogs(10_000)
    log = logs.open("a")
    logs.append("a", b"data: 0\n\n: ping\n\ndata: 1\n\n")
    logs.append("a", b"")
    assert log.events == [b"data: 0\n\n", b"data: 1\n\n"]
    assert logs.find("a") is log
    logs.append("b", b"data: of one that has no log\n\n")
    assert logs.find("b") is None


def test_it_is_read_in_pieces_of_whole_events() -> None:
    log = EventLogs(10_000).open("a")
    for event in (b"long" * 9, b"a", b"b", b"c"):
        log.append(event)
    assert log.read(0, 2) == [b"long" * 9], "one that is longer than any piece comes alone"
    assert log.read(1, 2) == [b"a", b"b"]
    assert log.read(1, 100) == [b"a", b"b", b"c"]
    assert log.read(4, 2) == []


def test_what_has_ended_makes_room_before_what_grows() -> None:
    logs = EventLogs(3000)
    old, running, ended = (logs.open(name) for name in ("old", "running", "ended"))
    for name in ("old", "running", "ended"):
        logs.append(name, b"x" * 800 + b"\n\n")
    old.end()
    ended.end()
    logs.append("running", b"x" * 800 + b"\n\n")
    assert (old.is_lost, running.is_lost, ended.is_lost) == (True, False, False)
    logs.append("running", b"x" * 2500 + b"\n\n")
    assert (running.is_lost, ended.is_lost) == (True, True)
    assert running.events == []
    assert logs.num_bytes == 0
    logs.append("running", b"more\n\n")
    assert running.events == []


def test_what_is_forgotten_takes_no_room() -> None:
    logs = EventLogs(3000)
    log = logs.open("a")
    logs.append("a", b"event\n\n")
    logs.lose("a")
    logs.lose("a")
    assert (logs.num_bytes, logs.find("a"), log.is_ended) == (0, None, True)


@pytest.mark.anyio
async def test_readers_wait_for_an_event_or_the_end() -> None:
    logs = EventLogs(3000)
    log = logs.open("a")
    seen: list[int] = []

    async def wait(number: int) -> None:
        await log.wait(number)
        seen.append(number)

    async with anyio.create_task_group() as tasks:
        for number in (0, 1, 7):
            tasks.start_soon(wait, number)
        await anyio.wait_all_tasks_blocked()
        logs.append("a", b"0\n\n1\n\n")
        await anyio.wait_all_tasks_blocked()
        assert sorted(seen) == [0, 1]
        log.end()
    assert sorted(seen) == [0, 1, 7]
