"""Dispatcher: which request is at which rank, from its arrival to its end.

A request goes to a rank; as long as nothing has come back of it, it can go to another: when its rank is lost,
or has it wait while another has room. Where no rank serves it is held here. Once something of it has come
back, it ends with its rank; so does one that several ranks were lost with, which may be what ends them. Each
request ends once, and its outputs come in order and from one rank.

Pure and synchronous; times are given to it, in seconds on any one clock. This module knows no event loop, and
of a link only that messages can be posted to it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import count, islice
from math import ceil

from triolet.args import EngineArgs
from triolet.cluster.frames import WireError
from triolet.cluster.held_requests import HeldRequests
from triolet.cluster.losses import Losses
from triolet.cluster.messages import Abort, Add, RankReport, Ready
from triolet.cluster.placement import REQUEST_COST, Placement, PrefixAffinity
from triolet.cluster.queue_limits import QueueLimits
from triolet.cluster.rank_link import ENDED, MessagePost, RankLink, RoutedRequest
from triolet.core.recent_ends import RecentEnds
from triolet.errors import InvalidRequestError, OverloadedError
from triolet.request import FinishReason, Request, RequestOptions, TokenOutput
from triolet.statistics import RankState, RankStatistics

__all__ = ["Dispatcher"]

FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0
MAX_LOSSES = 3
"""Ranks that may be lost with a request: it ends with the last of them."""
MAX_PROMPT_TOKENS = 8 << 20
"""In the prompts of requests that belong together: 64 MiB on the way to a rank, for which others wait."""
TIMEOUTS = ("queue_timeout", "first_token_timeout", "timeout")


class Dispatcher:
    """The requests of a front end on ranks. ``outputs`` are those to be handed on.

    ``ranks``: their numbers, in order, one after the other. ``has_peers``: whether other front ends use them.
    """

    def __init__(self, args: EngineArgs, ranks: Sequence[int], *, has_peers: bool) -> None:
        self.ranks = {
            rank: RankLink(rank, max_num_seqs=args.max_num_seqs, has_peers=has_peers) for rank in ranks
        }
        affinity = PrefixAffinity(args.block_size) if args.enable_prefix_caching else None
        self.placement = Placement(len(self.ranks), affinity)
        self.outputs: list[TokenOutput] = []
        self._requests: dict[int, RoutedRequest] = {}
        self._held = HeldRequests(args.cluster_join_timeout)
        self._losses = Losses()
        self._retry_ids = count(-1, -1)
        self._recent_ends = RecentEnds()
        self._limits = QueueLimits(args, self._recent_ends)

    @property
    def num_requests(self) -> int:
        """Requests under way."""
        return len(self._requests)

    # ------------------------------------------------------------------ what a front end asks for

    def add(self, requests: Sequence[Request], now: float) -> None:
        """Give requests that belong together to one rank, all of them or none.

        Raises InvalidRequestError for what no rank can be given, OverloadedError when too many wait or no
        rank serves.
        """
        self._check_length(requests)
        for request in requests:
            self._check(request)
        candidates = self._candidates(requests[0])
        if not candidates:
            raise self._not_serving(requests[0])
        self._check_queue(requests, now)
        rank = self._place(requests[0], candidates)
        for index, request in enumerate(requests):
            routed = RoutedRequest(request, now, request.request_id)
            try:
                self._send(routed, request, rank, now)
            except WireError as exc:
                for sent in requests[:index]:
                    self.abort(sent.request_id, now)
                raise InvalidRequestError(f"the request cannot be given to an engine: {exc}") from exc
            self._requests[request.request_id] = routed

    def abort(self, request_id: int, now: float) -> None:
        """Take a request out; ids that have ended are ignored."""
        routed = self._requests.get(request_id)
        if routed is not None:
            self._recall(routed)
            self._end(routed, now)

    def abort_all(self, now: float) -> list[int]:
        """Take all requests out; → their ids."""
        request_ids = list(self._requests)
        for request_id in request_ids:
            self.abort(request_id, now)
        return request_ids

    def end_all(self, now: float) -> None:
        """End all requests with what has come of them."""
        for routed in list(self._requests.values()):
            self._recall(routed)
            self._finish(routed, FinishReason.ABORT, now)

    def take_outputs(self) -> list[TokenOutput]:
        """Those that have come since the last time."""
        outputs, self.outputs = self.outputs, []
        return outputs

    def statistics_of(self, rank: RankLink, now: float) -> RankStatistics:
        """What the rank told last, its state as it is, and how long the first of its requests has waited.

        What is held counts for every rank that does not serve.
        """
        firsts = [*islice(rank.new.values(), 1)]
        if rank.state is not RankState.READY:
            firsts += islice(self._held, 1)
        oldest = max((now - routed.arrived for routed in firsts), default=None)
        return replace(rank.statistics, state=rank.state, cause=rank.cause, oldest_waiting_age=oldest)

    # ------------------------------------------------------------------ what ranks tell

    def attach(self, link: MessagePost, ready: Ready, now: float) -> None:
        """A rank can be reached; it has none of our requests."""
        rank = self.ranks[ready.rank]
        if rank.link is not None:
            replaced, reason = rank.link, "another connection took its place"
            self.detach(rank, replaced, reason, now)
            replaced.close(reason)
        self.placement.forget(rank.rank)
        rank.attach(link, ready)
        self._place_held(now)
        self._balance(now)

    def detach(self, rank: RankLink, link: MessagePost, reason: str, now: float) -> None:
        """A link is lost: whoever can goes to another rank, the others will end."""
        if rank.link is not link:
            return
        self.placement.forget(rank.rank)
        is_expected = rank.state is RankState.DRAINING
        over: list[RoutedRequest] = []
        for routed in rank.detach(reason):
            routed.rank = None
            routed.num_losses += not is_expected
            if routed.has_output or routed.num_losses >= MAX_LOSSES:
                over.append(routed)
            else:
                self._resend(routed, now)
        if over:
            self._losses.add(rank, reason, over, now)
            self._settle_losses(now)

    def receive(self, rank: RankLink, link: MessagePost, outputs: Iterable[TokenOutput], now: float) -> None:
        """What a rank has produced. What has left it meanwhile, or come by an old link, is dropped."""
        if rank.link is not link:
            return
        requests, append = rank.requests, self.outputs.append
        has_ended = False
        for output in outputs:
            routed = requests.get(output.request_id)
            if routed is None:
                continue
            if not routed.has_output:
                rank.note_output(routed)
            if output.finish_reason is not None:
                has_ended = True
                self._end(routed, now)
            request_id = routed.request.request_id
            append(output if output.request_id == request_id else replace(output, request_id=request_id))
        if has_ended:
            self._balance(now)

    def update(self, reports: Iterable[RankReport], now: float) -> None:
        """News of ranks; those of ranks that are not ours are ignored."""
        for report in reports:
            if report.rank in self.ranks:
                self.ranks[report.rank].note_report(report, now)
        self._settle_losses(now)
        if self._held:
            self._fail_hopeless(list(self._held), {RankState.DEAD}, now)
            self._place_held(now)
        self._balance(now)

    # ------------------------------------------------------------------ time

    def next_due(self) -> float | None:
        """When :meth:`expire` will next have something to do; None if it will not."""
        dues = (self._held.next_due(), self._losses.next_due())
        return min((due for due in dues if due is not None), default=None)

    def expire(self, now: float) -> None:
        """End those that are late, and those that have waited for too long: for a rank, or for its cause."""
        for routed in self._held.late(now):
            self._finish(routed, FinishReason.TIMEOUT, now)
        self._fail_hopeless(self._held.doubtful(now), ENDED, now)
        self._settle_losses(now)

    # ------------------------------------------------------------------ placing

    def _check(self, request: Request) -> None:
        if request.adjustments is not None and request.adjustments.processors:
            raise InvalidRequestError(
                "logits_processors: functions cannot be sent to an engine in another process; leave them "
                "out, or run the engine in this process",
                param="logits_processors",
            )
        rank = request.options.data_parallel_rank
        if rank is not None and rank not in self.ranks:
            numbers = ", ".join(map(str, self.ranks))
            raise InvalidRequestError(
                f"data_parallel_rank: must be one of {numbers}, got {rank}", param="data_parallel_rank"
            )

    def _check_length(self, requests: Sequence[Request]) -> None:
        num_tokens = sum(_lengths(requests))
        if num_tokens > MAX_PROMPT_TOKENS:
            raise InvalidRequestError(
                f"n: the prompt, once for each of {len(requests)} answers, is {num_tokens} tokens, of which "
                f"an engine in another process is given at most {MAX_PROMPT_TOKENS} at once; ask for fewer",
                param="n",
            )

    def _not_serving(self, request: Request) -> OverloadedError:
        ranks = self._wanted(request)
        restarts = min(rank.statistics.num_restarts for rank in ranks)
        states = ", ".join(f"{rank.rank} is {rank.state}" for rank in ranks)
        return OverloadedError(
            f"none of the engines that could serve this does so now (rank {states}); try again later",
            retry_after=ceil(min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** min(restarts, 16))),
            is_serving=False,
        )

    def check_room(self, now: float) -> None:
        """Raises OverloadedError while any request that may go to all ranks would be one too many."""
        self._limits.check_requests(list(self.ranks.values()), len(self._held), 1, now)

    def _check_queue(self, requests: Sequence[Request], now: float) -> None:
        ranks = self._wanted(requests[0])
        held = [one.request for one in self._held if not set(ranks).isdisjoint(self._wanted(one.request))]
        self._limits.check_requests(ranks, len(held), len(requests), now)
        self._limits.check_tokens(ranks, _lengths(held), sum(_lengths(requests)), now)

    def _candidates(self, request: Request) -> list[RankLink]:
        return [rank for rank in self._wanted(request) if rank.state is RankState.READY]

    def _wanted(self, request: Request) -> list[RankLink]:
        wanted = request.options.data_parallel_rank
        return list(self.ranks.values()) if wanted is None else [self.ranks[wanted]]

    def _place(self, request: Request, candidates: Sequence[RankLink]) -> RankLink:
        return self.ranks[self.placement.place(request, [rank.burden for rank in candidates])]

    def _send(self, routed: RoutedRequest, request: Request, rank: RankLink, now: float) -> None:
        assert rank.link is not None
        rank.link.post(Add(request))
        routed.sent = now
        rank.put(routed)

    def _resend(self, routed: RoutedRequest, now: float, candidates: Sequence[RankLink] = ()) -> None:
        """Give a request that no rank has to another, with the time that it has left; or hold it."""
        options = _options_left(routed.request.options, now - routed.arrived)
        if options is None:
            self._finish(routed, FinishReason.TIMEOUT, now)
            return
        candidates = candidates or self._candidates(routed.request)
        if not candidates:
            self._held.add(routed, now)
            return
        routed.wire_id = next(self._retry_ids)
        request = replace(routed.request, request_id=routed.wire_id, options=options)
        self._send(routed, request, self._place(request, candidates), now)

    def _recall(self, routed: RoutedRequest, *, is_moved: bool = False) -> None:
        """Take a request from the rank that has it, if any does. ``is_moved``: to give it to another."""
        rank = routed.rank
        if rank is not None:
            rank.take(routed)
            assert rank.link is not None
            rank.link.post(Abort((routed.wire_id,), is_moved))

    def _place_held(self, now: float) -> None:
        for routed in list(self._held):
            if self._candidates(routed.request):
                self._held.discard(routed.request.request_id)
                self._resend(routed, now)

    def _balance(self, now: float) -> None:
        """Have requests that wait at one rank go to others that have room."""
        for rank in self.ranks.values():
            if rank.num_movable:
                self._relieve(rank, now)

    def _relieve(self, rank: RankLink, now: float) -> None:
        """Move the newest of those that wait, as long as they are better off elsewhere."""
        for routed in reversed(list(rank.new.values())):
            has_waited = rank.num_over or routed.sent <= rank.previously_reported_at
            is_bound = routed.request.options.data_parallel_rank is not None
            if not has_waited or is_bound or now < routed.may_move_at:
                continue
            better = [other for other in self.ranks.values() if _is_better(other, rank, routed.request)]
            if not better or not rank.num_movable:
                return
            self._recall(routed, is_moved=True)
            routed.num_moves += 1
            rank.note_moved()
            self._resend(routed, now, better)

    # ------------------------------------------------------------------ ending

    def _end(self, routed: RoutedRequest, now: float) -> None:
        request_id = routed.request.request_id
        del self._requests[request_id]
        if routed.rank is not None:
            routed.rank.take(routed)
        self._held.discard(request_id)
        self._recent_ends.add(now)

    def _finish(
        self, routed: RoutedRequest, reason: FinishReason, now: float, cause: str | None = None
    ) -> None:
        """End a request here. ``cause``: of the end of its rank."""
        self._end(routed, now)
        self.outputs.append(
            TokenOutput(
                request_id=routed.request.request_id,
                finish_reason=reason,
                error=cause,
                is_engine_dead=cause is not None,
            )
        )

    def _settle_losses(self, now: float) -> None:
        for routed, cause in self._losses.settle(now):
            if routed.request.request_id in self._requests:
                self._finish(routed, FinishReason.ERROR, now, cause)

    def _fail_hopeless(self, held: Iterable[RoutedRequest], states: Container[RankState], now: float) -> None:
        """End those whose ranks are all in one of these states."""
        for routed in held:
            ranks = self._wanted(routed.request)
            if all(rank.state in states for rank in ranks):
                cause = "; ".join(
                    f"rank {rank.rank}: {rank.statistics.cause or rank.state}" for rank in ranks
                )
                self._finish(routed, FinishReason.ERROR, now, cause)

    def check_integrity(self) -> None:
        """Assert that each request is in one place and that all counts are right."""
        held = set(map(id, self._held))
        for request_id, routed in self._requests.items():
            assert routed.request.request_id == request_id
            is_at_rank = routed.rank is not None and routed.rank.requests.get(routed.wire_id) is routed
            assert is_at_rank + (id(routed) in held) + (routed in self._losses) == 1
        num_placed = sum(len(rank.requests) for rank in self.ranks.values())
        assert num_placed + len(self._held) <= len(self._requests)
        self._held.check_integrity()
        for rank in self.ranks.values():
            rank.check_integrity()


def _lengths(requests: Sequence[Request]) -> list[int]:
    return [len(request.prompt_token_ids) for request in requests]


def _is_better(other: RankLink, rank: RankLink, request: Request) -> bool:
    """Whether a request that waits at ``rank`` would be better off at the other."""
    cost = REQUEST_COST + len(request.prompt_token_ids)
    return other is not rank and other.has_room and other.burden.num_tokens + cost <= rank.burden.num_tokens


def _options_left(options: RequestOptions, seconds: float) -> RequestOptions | None:
    """The options with the time that is left after so many seconds; None where one of the times is up."""
    timeouts = {name: value - seconds for name in TIMEOUTS if (value := getattr(options, name)) is not None}
    if not timeouts:
        return options
    return replace(options, **timeouts) if min(timeouts.values()) > 0 else None
