"""RankLink: one rank as a front end sees it: what it was given, what it does, how it is reached.

Counts what this front end gave to the rank exactly; of the load that others put on it, it knows what the rank
last reported. This module knows no event loop and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from triolet.cluster.messages import Message, RankLoad, RankReport, Ready
from triolet.cluster.placement import REQUEST_COST, RankBurden
from triolet.request import Request
from triolet.statistics import RankState, RankStatistics

__all__ = ["ENDED", "MessagePost", "RankLink", "RoutedRequest"]

FULL_KV_USAGE = 0.9
STAY_SECONDS = 0.25
"""Half of what a request stays where it was moved to first."""
ENDED = frozenset({RankState.DOWN, RankState.LEFT, RankState.DEAD})
LEAVING = ENDED | {RankState.DRAINING}


class MessagePost(Protocol):
    """The way to a rank."""

    def post(self, message: Message) -> None:
        """Send it when there is room; never blocks."""
        ...

    def close(self, reason: str) -> None: ...


@dataclass(eq=False, slots=True)
class RoutedRequest:
    """A request under way. ``wire_id`` is its id at the rank it was last given to, ``sent`` when it was.

    ``has_output``: something of it has come back, so that it can be had from this rank alone. ``num_losses``:
    ranks that were lost while they had it. ``num_moves``: from ranks where it waited.
    """

    request: Request
    arrived: float
    wire_id: int
    sent: float = 0.0
    rank: RankLink | None = None
    has_output: bool = False
    num_losses: int = 0
    num_moves: int = 0

    @property
    def may_move_at(self) -> float:
        """It stays for twice as long after each move but the first.

        Front ends that know the same at the same time move theirs to the same place; without this they would
        do so for ever, before anything of them is computed.
        """
        return self.sent + (STAY_SECONDS * 2.0**self.num_moves if self.num_moves else 0.0)


class RankLink:
    """One rank. ``requests`` are those that it was given, by wire id, ``new`` those without any output yet.

    ``generation`` counts the rank's starts; it is that of the last link. With ``has_peers`` the rank has
    other front ends too.
    """

    def __init__(self, rank: int, *, max_num_seqs: int, has_peers: bool) -> None:
        self.rank = rank
        self.link: MessagePost | None = None
        self.generation: int | None = None
        self.report: RankReport | None = None
        self.previously_reported_at = self._reported_at = 0.0
        self.statistics = RankStatistics(rank=rank, state=RankState.STARTING)
        self._loss: str | None = None
        self.requests: dict[int, RoutedRequest] = {}
        self.new: dict[int, RoutedRequest] = {}
        self._num_new_tokens = 0
        self._max_num_seqs = max_num_seqs
        self._has_peers = has_peers
        self._num_other_tokens = 0
        self._num_others = 0
        self._num_waiting = 0
        self._num_stuck = 0
        self._num_reported_steps = -1

    # ------------------------------------------------------------------ life

    @property
    def state(self) -> RankState:
        """What is reported, but ready only while it can be reached."""
        report = self.report
        if self.link is not None:
            is_current = report is not None and report.generation == self.generation
            return report.state if report and is_current and report.state in LEAVING else RankState.READY
        if report is not None and report.state is not RankState.READY:
            return report.state
        newest = -1 if report is None else report.generation
        return RankState.STARTING if self.generation is None or newest > self.generation else RankState.DOWN

    def attach(self, link: MessagePost, ready: Ready) -> None:
        """It can be reached, and has none of our requests. It counts on from what it counted before."""
        assert not self.requests
        self.link, self.generation = link, ready.generation
        scheduler = replace(
            self.statistics.scheduler, num_blocks=ready.num_blocks, num_free_blocks=ready.num_blocks
        )
        self.statistics = replace(self.statistics, scheduler=scheduler, is_paused=False, is_sleeping=False)
        self._forget_load()

    def detach(self, reason: str) -> list[RoutedRequest]:
        """It cannot be reached any more, for a ``reason`` as seen from here; → the requests that it had."""
        self.link, self._loss = None, reason
        lost = list(self.requests.values())
        self.requests.clear()
        self.new.clear()
        self._num_new_tokens = 0
        self._forget_load()
        self.statistics = replace(self.statistics, last_step_age=None, oldest_waiting_age=None)
        self._note_scheduler(num_running=0, num_waiting=0)
        return lost

    @property
    def cause(self) -> str | None:
        """Why it is down: as it was told, else as seen from here; while it serves, why it last was."""
        has_told = self.report is not None and self.report.cause is not None
        if self.state is RankState.DOWN and not has_told:
            return self._loss
        return self.statistics.cause

    def cause_of_loss(self, generation: int) -> str | None:
        """Why that start of the rank ended, if that is known."""
        report = self.report
        if report is None or report.cause is None or report.generation < generation:
            return None
        has_ended = report.generation > generation or report.state in ENDED
        return report.cause if has_ended else None

    # ------------------------------------------------------------------ requests

    def put(self, routed: RoutedRequest) -> None:
        """It is given a request."""
        routed.rank = self
        self.requests[routed.wire_id] = self.new[routed.wire_id] = routed
        self._num_new_tokens += len(routed.request.prompt_token_ids)

    def take(self, routed: RoutedRequest) -> None:
        """The request has ended, or is taken from it."""
        routed.rank = None
        del self.requests[routed.wire_id]
        if not routed.has_output:
            self._take_new(routed)

    def note_output(self, routed: RoutedRequest) -> None:
        """The first output of a request has come."""
        routed.has_output = True
        self._take_new(routed)

    def _take_new(self, routed: RoutedRequest) -> None:
        del self.new[routed.wire_id]
        self._num_new_tokens -= len(routed.request.prompt_token_ids)

    # ------------------------------------------------------------------ load

    def note_report(self, report: RankReport, now: float) -> None:
        """Take in what is known of the rank."""
        self.report = report
        self.statistics = replace(
            self.statistics, num_restarts=report.num_restarts, cause=report.cause or self.statistics.cause
        )
        if report.load is not None and self.link is not None and report.generation == self.generation:
            self._note_load(report.load)
            self.previously_reported_at, self._reported_at = self._reported_at, now

    def _note_load(self, load: RankLoad) -> None:
        if self._has_peers:
            num_requests = load.num_running + load.num_waiting
            self._num_others = max(0, num_requests - len(self.requests))
            self._num_other_tokens = max(0, load.num_waiting_tokens - self._num_new_tokens)
        self._num_reported_steps = load.num_steps
        self._num_stuck = min(self._num_waiting, load.num_waiting)
        self._num_waiting = load.num_waiting
        self._note_scheduler(load.num_running, load.num_waiting, load.kv_usage)
        self.statistics = replace(
            self.statistics,
            num_steps=max(load.num_steps, self.statistics.num_steps),
            is_paused=load.is_paused,
            is_sleeping=load.is_sleeping,
            last_step_age=load.step_age,
        )

    def note_statistics(self, told: RankStatistics) -> None:
        """Take in what the rank has told of itself in full.

        Reports come another way. What is no newer than the last of them may be older, and no report would
        come to put it right.
        """
        known = self.statistics
        if told.num_steps <= self._num_reported_steps:
            current = known.scheduler
            scheduler = replace(
                told.scheduler, num_running=current.num_running, num_waiting=current.num_waiting,
                num_free_blocks=current.num_free_blocks,
            )  # fmt: skip
            told = replace(
                told, scheduler=scheduler, is_paused=known.is_paused, is_sleeping=known.is_sleeping,
                last_step_age=known.last_step_age,
            )  # fmt: skip
        self.statistics = replace(
            told, rank=self.rank, num_restarts=known.num_restarts, cause=known.cause, state=known.state
        )

    def _note_scheduler(self, num_running: int, num_waiting: int, kv_usage: float = 0.0) -> None:
        scheduler = self.statistics.scheduler
        num_free = scheduler.num_blocks - round(kv_usage * scheduler.num_blocks)
        scheduler = replace(
            scheduler, num_running=num_running, num_waiting=num_waiting, num_free_blocks=num_free
        )
        self.statistics = replace(self.statistics, scheduler=scheduler)

    def _forget_load(self) -> None:
        self._num_other_tokens = self._num_others = self._num_waiting = self._num_stuck = 0
        self._num_reported_steps = -1

    @property
    def _num_requests(self) -> int:
        """Ours and those of other front ends."""
        return len(self.requests) + self._num_others

    @property
    def burden(self) -> RankBurden:
        """What it has to do, for choosing among ranks."""
        num_tokens = self._num_new_tokens + self._num_other_tokens + REQUEST_COST * self._num_requests
        return RankBurden(self.rank, num_tokens, self.statistics.scheduler.kv_usage)

    @property
    def num_over(self) -> int:
        """So many of its requests are more than it can run at once."""
        return max(0, self._num_requests - self._max_num_seqs)

    @property
    def num_free_slots(self) -> int:
        """So many more requests it could run at once, were there blocks for them."""
        return max(0, self._max_num_seqs - self._num_requests) if self.state is RankState.READY else 0

    @property
    def num_queued(self) -> int:
        """So many of its requests wait: as it told last, or more where more must."""
        return max(self.num_over, min(self._num_waiting, len(self.new) + self._num_others))

    @property
    def num_queued_tokens(self) -> int:
        """Tokens in the prompts of those that wait, at most."""
        return self._num_new_tokens + self._num_other_tokens if self.num_queued else 0

    @property
    def num_movable(self) -> int:
        """So many of our requests have waited for long enough to be better off where there is room."""
        return min(len(self.new), max(self.num_over, self._num_stuck))

    @property
    def has_room(self) -> bool:
        """Whether it would start another request at once."""
        has_blocks = self.statistics.scheduler.kv_usage < FULL_KV_USAGE
        return has_blocks and self.num_free_slots > 0 and not self.num_queued

    def note_moved(self) -> None:
        """One of those that waited has been taken to another rank."""
        self._num_waiting = max(0, self._num_waiting - 1)
        self._num_stuck = max(0, self._num_stuck - 1)

    def check_integrity(self) -> None:
        """Assert that all counts are right."""
        assert self.link is not None or not self.requests
        for wire_id, routed in self.requests.items():
            assert (routed.rank, routed.wire_id) == (self, wire_id)
            assert (wire_id in self.new) is not routed.has_output
        assert self.new.keys() <= self.requests.keys()
        prompts = (routed.request.prompt_token_ids for routed in self.new.values())
        assert self._num_new_tokens == sum(map(len, prompts))
