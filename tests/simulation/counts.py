"""What must hold of what is counted: each request once, where it ended, and nothing counted is counted back.

This module knows nothing of how the cluster came to be as it is.
"""

from __future__ import annotations

from tests.simulation.desk import Desk
from tests.simulation.world import World

from triolet.request import FinishReason
from triolet.statistics import RankStatistics

__all__ = ["check_counters", "check_counts", "what_is_not_counted"]

WHOLE = {FinishReason.STOP.value, FinishReason.LENGTH.value}


def check_counts(world: World) -> None:
    """What was answered is counted by the engine that did so, and by none that had computed nothing of it."""
    for number, ticket in world.tickets.items():
        if ticket.outcome not in WHOLE:
            continue
        counts = world.counts[number]
        if not any((one.pid, one.num_tokens) == (ticket.maker, len(ticket.tokens)) for one in counts):
            world.note_problem(f"{ticket.name} is not counted by {ticket.maker}, which answered it: {counts}")
        if any(one.num_tokens == 0 for one in counts):
            world.note_problem(f"{ticket.name} is counted where it only waited: {counts}")


def check_counters(world: World, desk: Desk) -> None:
    """Of no rank that is started again here does a front end see a counter go back."""
    told = list(desk.client.rank_statistics()[: world.scenario.num_local_ranks])
    for before, now in zip(desk.counted, told, strict=False):
        if _num_ended(now) < _num_ended(before) or now.num_steps < before.num_steps:
            world.note_problem(
                f"{desk.name}: rank {now.rank} counts {_num_ended(now)} requests and {now.num_steps} steps, "
                f"after {_num_ended(before)} and {before.num_steps}"
            )
    desk.counted = told


def what_is_not_counted(world: World, desk: Desk) -> list[str]:
    """Ranks of whose processes none has failed, and yet not all that was counted is known."""
    if world.num_heads > 1:
        return []
    counted = [one.rank for counts in world.counts.values() for one in counts]
    return [
        f"{desk.name}: rank {told.rank} counts {_num_ended(told)} requests of {counted.count(told.rank)}"
        for told in desk.client.rank_statistics()[: world.scenario.num_local_ranks]
        if not world.num_deaths[told.rank] and _num_ended(told) != counted.count(told.rank)
    ]


def _num_ended(told: RankStatistics) -> int:
    return sum(told.core.generation_tokens.counts)
