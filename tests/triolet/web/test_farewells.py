"""A server waits for those who are still to be told something, and for nobody else."""

from __future__ import annotations

import anyio
import pytest

from triolet.web.farewells import Farewells

pytestmark = pytest.mark.anyio


async def test_nothing_owed_is_waited_for_at_once() -> None:
    farewells = Farewells()
    farewells.tell("nobody")
    with anyio.fail_after(30):
        await farewells.wait_told()


async def test_all_that_is_owed_is_waited_for_what_comes_later_too() -> None:
    farewells = Farewells()
    farewells.owe("a")
    told: list[str] = []

    async def wait() -> None:
        await farewells.wait_told()
        told.append("all")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        farewells.owe("b")
        farewells.tell("a")
        farewells.tell("a")
        await anyio.wait_all_tasks_blocked()
        assert told == []
        farewells.tell("b")
    assert told == ["all"]
