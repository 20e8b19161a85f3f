"""One simulation, from a seed to its verdict.

This module knows nothing of what a cluster is made of.
"""

from __future__ import annotations

import logging
import signal
import traceback
from contextlib import redirect_stderr
from functools import partial
from io import StringIO
from unittest import mock

import anyio
from anyio.abc import TaskGroup
from tests.simulation.counts import check_counts
from tests.simulation.faults import Faults
from tests.simulation.front_ends import head, launcher
from tests.simulation.invariants import check_always, check_gone, what_is_missing
from tests.simulation.loop import run_seeded
from tests.simulation.processes import VirtualProcess, receive_signals
from tests.simulation.roles import NodeProcess
from tests.simulation.scenarios import ClientPlan, Scenario, draw_scenario
from tests.simulation.world import Event, World

from triolet.request import RequestOptions

__all__ = ["SimulationError", "failures_of", "simulate"]

CHECK_SECONDS = 0.5
SETTLING_SECONDS = 3.0
"""For news of what went wrong last to get through, so that nothing looks whole that is not."""
RECOVERY_SECONDS = 150.0
"""Longest pause before a restart, and loading, and the time to notice; twice."""
MOST_SECONDS = 1000.0
END_SECONDS = 2.0
NUM_LAST_CLIENTS = 3
NUM_LAST_TOKENS = 32


class SimulationError(AssertionError):
    """Something that must hold does not. ``events`` is what happened until then."""

    def __init__(self, problem: str, events: list[Event]) -> None:
        super().__init__(problem)
        self.events = events


def simulate(seed: int) -> list[Event]:
    """Run the scenario that belongs to a seed; what happened. Raises SimulationError."""
    scenario = draw_scenario(seed)
    worlds: list[World] = []

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            world = World(scenario, tasks)
            worlds.append(world)
            try:
                with anyio.fail_after(MOST_SECONDS):
                    await _Simulation(world, tasks).run()
            finally:
                world.end_all()
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(END_SECONDS)  # for their tasks to end
            tasks.cancel_scope.cancel()

    try:
        with redirect_stderr(StringIO()), mock.patch.object(anyio, "open_signal_receiver", receive_signals):
            run_seeded(seed, main)
        worlds[0].raise_problems()
    except Exception as exc:
        raise SimulationError(f"{type(exc).__name__}: {exc}", worlds[0].events) from exc
    return worlds[0].events


def failures_of(seeds: range) -> list[tuple[int, str]]:
    """Those that fail, and what is wrong; nothing is logged. Run by processes that do nothing else."""
    logging.disable(logging.CRITICAL)
    failures: list[tuple[int, str]] = []
    for seed in seeds:
        try:
            simulate(seed)
        except SimulationError as exc:
            failures.append((seed, str(exc)))
    return failures


class _Simulation:
    def __init__(self, world: World, tasks: TaskGroup) -> None:
        self._world, self._tasks = world, tasks

    @property
    def _scenario(self) -> Scenario:
        return self._world.scenario

    @property
    def _process(self) -> VirtualProcess:
        return self._world.head

    async def run(self) -> None:
        world = self._world
        world.machines.on_end.append(world.note_end)
        role = head if self._scenario.num_api_servers == 1 else launcher
        world.head_role = partial(role, world)
        world.start_head()
        for index in range(self._scenario.num_nodes):
            name = f"node {index}"
            self._tasks.start_soon(world.keep, name, name, partial(NodeProcess.role, world, index, None))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._check)
            await self._wait_until_ready()
            async with anyio.create_task_group() as happenings:
                for plan in self._scenario.clients:
                    happenings.start_soon(world.client, plan)
                await Faults(world).run()
                await self._recover()
                if world.problems:
                    self._process.kill()
            world.is_ending = True
            if world.problems:
                pass
            elif not world.is_head_over:
                await self._end()
            else:
                self._check_failure()
                world.end_all()  # nodes would wait for another head
            tasks.cancel_scope.cancel()
        await anyio.sleep(END_SECONDS)
        check_gone(world)
        check_counts(world)

    async def _wait_until_ready(self) -> None:
        with anyio.move_on_after(CHECK_SECONDS):
            await self._process.wait()
        if self._scenario.begins_ready:
            await self._recover()

    async def _check(self) -> None:
        while True:
            self._ask_for_statistics()
            try:
                check_always(self._world)
            except AssertionError as exc:
                self._world.note_problem("".join(traceback.format_exception(exc)))
            await anyio.sleep(CHECK_SECONDS)

    async def _recover(self) -> None:
        """Nothing goes wrong any more: soon all is as it should be."""
        await anyio.sleep(SETTLING_SECONDS)
        deadline = anyio.current_time() + RECOVERY_SECONDS
        while not self._world.is_head_over:
            self._go_on()
            self._ask_for_statistics()
            missing = what_is_missing(self._world)
            if not missing:
                self._world.trace("recovered")
                return
            if anyio.current_time() > deadline:
                self._world.note_problem(f"not recovered: {'; '.join(missing)}")
                return
            await anyio.sleep(CHECK_SECONDS)

    def _go_on(self) -> None:
        """Have the engines go on, should they be paused, as somebody would who sees that."""
        world = self._world
        if world.owner is not None and world.owner.order.state.is_paused:
            for desk in world.desks[:1]:
                desk.control("wake up", lambda client: client.wake_up())
                desk.control("resume", lambda client: client.resume())

    def _ask_for_statistics(self) -> None:
        for desk in self._world.desks:
            if desk.is_serving and not desk.is_closed:
                desk.control("statistics", lambda client: client.refresh_statistics())

    def _check_failure(self) -> None:
        """The head has ended: only where engines of its machine died too often, or a front end did."""
        world, ranks = self._world, range(self._scenario.num_local_ranks)
        budget = self._scenario.args["engine_restart_budget"]
        is_spent = any(world.num_deaths[rank] > budget for rank in ranks)
        is_first_load = not world.loaded_ranks.issuperset(ranks)
        if world.is_front_end_lost and self._process.status in (1, -signal.SIGKILL):
            return
        if self._process.status != 1 or not (is_spent or is_first_load):
            world.note_problem(f"{self._process!r} ended with {self._process.status}")

    async def _end(self) -> None:
        """End the cluster while there is something to do."""
        world, scenario = self._world, self._scenario
        world.trace("end", scenario.end)
        world.allow_aborts()
        if scenario.end == "drain during a restart":
            self._process.send_signal(signal.SIGHUP)
        desk = world.desks[scenario.seed % len(world.desks)]
        for index in range(NUM_LAST_CLIENTS):
            number = len(scenario.clients) + index
            plan = ClientPlan(0.0, (1, 2, 3, number), NUM_LAST_TOKENS, RequestOptions())
            self._tasks.start_soon(world.ask, plan, desk)
        await anyio.sleep(world.random.choice((0.01, 0.1, 1.0)))
        if scenario.end == "kill":
            self._process.kill()
            return
        self._process.send_signal(signal.SIGTERM)
        if scenario.end == "second signal":
            await anyio.sleep(world.random.uniform(0, 0.5))
            self._process.send_signal(signal.SIGTERM)
        with anyio.fail_after(scenario.drain_seconds + 4.0):
            status = await self._process.wait()
        if status not in (0, 128 + signal.SIGTERM):
            world.note_problem(f"{self._process!r} ended with {status}")
