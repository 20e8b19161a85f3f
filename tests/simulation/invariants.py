"""What must hold of a cluster: at any time, when it is idle, and when it has ended.

This module knows nothing of how the cluster came to be as it is.
"""

from __future__ import annotations

from tests.simulation.counts import check_counters, what_is_not_counted
from tests.simulation.desk import Desk
from tests.simulation.world import ENGINE, INTRUDER, World

from triolet.statistics import RankState

__all__ = ["check_always", "check_gone", "what_is_missing"]


def check_always(world: World) -> None:
    """Each front end's router knows exactly the requests that its clients wait for."""
    for desk in world.desks:
        router = desk.client
        router._dispatcher.check_integrity()
        check_counters(world, desk)
        waiting = sum(ticket.outcome is None for ticket in desk.tickets.values())
        if not desk.is_closed and not waiting <= router.num_requests <= len(desk.tickets):
            world.note_problem(f"{desk.name}: {router.num_requests} requests under way, {waiting} waited for")


def what_is_missing(world: World) -> list[str]:
    """What there should be once nothing goes wrong any more, and is not yet: whole and idle."""
    missing = [f"{ticket.name} waits" for ticket in world.open_tickets]
    if len(world.processes(ENGINE)) != world.scenario.num_ranks:
        missing.append(f"there are {len(world.processes('engine '))} engine processes")
    if len(world.desks) != world.scenario.num_api_servers:
        missing.append(f"there are {len(world.desks)} front ends")
    missing += [f"{process!r} has not been refused yet" for process in world.processes(INTRUDER)]
    missing += _not_agreed(world)
    for desk in world.desks:
        if not desk.is_serving:
            missing.append(f"{desk.name} does not serve yet")
        elif not desk.is_closed:
            missing += _not_idle(desk) + what_is_not_counted(world, desk)
    return missing


def _not_agreed(world: World) -> list[str]:
    """Who is not paused or asleep as was decided, or thinks something else to have been."""
    if world.owner is None:
        return ["nobody decides of pauses"]
    order = world.owner.order
    wanted = order.state.is_paused, order.state.parts_asleep
    missing = [
        f"{desk.name} believes in {desk.client._order}, not {order}"
        for desk in world.desks
        if desk.client._order != order
    ]
    for process in world.processes(ENGINE):
        engine = world.engines.get(process.pid)
        if engine is None or engine.control != wanted:
            missing.append(f"{process!r} is {engine and engine.control}, not {wanted}")
    return missing


def _not_idle(desk: Desk) -> list[str]:
    router = desk.client
    missing = [
        f"{desk.name}: rank {rank} is {state}"
        for rank, state in enumerate(router.rank_states)
        if state is not RankState.READY
    ]
    missing += [
        f"{desk.name}: rank {rank.rank} is thought to be busy: {rank.burden}"
        for rank in router._dispatcher.ranks.values()
        if rank.requests or rank.new or rank.burden.num_tokens or rank.num_queued
    ]
    for told in router.rank_statistics():
        if told.scheduler.num_running or told.scheduler.num_waiting:
            missing.append(f"{desk.name}: rank {told.rank} is known to be busy: {told.scheduler}")
        if told.is_paused or told.is_sleeping:
            missing.append(f"{desk.name}: rank {told.rank} is known to be paused")
    if router.num_requests or router._dispatcher.next_due() is not None:
        missing.append(f"{desk.name}: {router.num_requests} requests under way")
    return missing


def check_gone(world: World) -> None:
    """Nothing is left: no process, no task of one, no connection, no address in use, no request."""
    left = [*map(repr, world.machines.processes.values()), *world.network.open_connections]
    left += world.network.listeners
    left += [ticket.name for ticket in world.open_tickets]
    if world.machines.num_unfinished:
        left.append(f"tasks of {world.machines.num_unfinished} processes")
    if left:
        world.note_problem(f"left at the end: {', '.join(left)}")
