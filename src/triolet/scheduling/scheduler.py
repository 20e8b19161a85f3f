"""Continuous batching: makes one :class:`StepPlan` after another out of the requests there are.

**Order.** Under one token budget: first the running sequences that need one token (decodes), then those
with more of their prompt to compute, in chunks, then waiting requests, first come first served, while
slots, blocks and budget last. A sequence is promised the blocks of all its known tokens when it is admitted,
so that only decodes ever ask for more, one block at a time. One is admitted only if every running sequence
could still take another block afterwards, so that it is not thrown out again at once. One that is held back,
because what it needs next is being computed, is overtaken, but not for the slot that it will take.

**Preemption.** A decode that finds no free block throws out the sequence admitted last (perhaps itself),
which goes back to the front of the queue with its tokens and later computes all of them anew. The oldest
sequence is never thrown out, so it ends, and then the next oldest: nothing starves. A newcomer never throws
anything out.

**Pipelining.** Up to two plans may be in flight. A slot and blocks in use by a plan in flight are given
back when it is committed: whatever leaves (ended, aborted, preempted) waits for that in ``_leaving``. While
something is leaving, its blocks are about to come back, so a decode without a block waits rather than throw
out one more. What is sampled for an ended or aborted sequence is discarded; what is sampled for a preempted
one is kept, so that it is queued with all its tokens known.

This module knows neither torch, nor text, nor a clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from triolet.errors import OverloadedError
from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import Request, TokenOutput
from triolet.scheduling.config import MAX_PLANS_IN_FLIGHT, SchedulerConfig
from triolet.scheduling.integrity import check_sequences
from triolet.scheduling.kv_cache_manager import Admission, KVCacheManager
from triolet.scheduling.outputs import split_result, take_in
from triolet.scheduling.sequence import Sequence, SequenceStatus
from triolet.statistics import SchedulerStatistics

__all__ = ["MAX_PLANS_IN_FLIGHT", "Scheduler", "SchedulerConfig"]


@dataclass(slots=True)
class _Draft:
    """A plan in the making: its rows, the sequence of each, and the tokens still to be given out."""

    budget: int
    rows: list[PlanRow] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)

    def num_tokens_for(self, sequence: Sequence) -> int:
        return min(sequence.num_pending_tokens, self.budget)

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        self.budget -= num_tokens
        self.rows.append(sequence.schedule(num_tokens))
        self.sequences.append(sequence)


class Scheduler:
    """Decides what each step computes and keeps the books of slots, blocks and tokens.

    Call :meth:`schedule` for a plan, have it run, then :meth:`commit` its result; with a second plan made
    before the first is committed, or without. Not safe to call from several threads at once.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._kv_cache = KVCacheManager(
            config.layer_groups,
            block_size=config.block_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._free_slots = list(reversed(range(config.max_num_seqs)))
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: dict[int, Sequence] = {}  # in order of admission
        self._leaving: dict[int, Sequence] = {}
        self._in_flight: deque[tuple[StepPlan, list[Sequence]]] = deque()
        self._num_plans = 0
        self._num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is queued, running or not given back yet. If not, no plan is in flight."""
        return bool(self._waiting or self._running or self._leaving)

    def is_holding(self, request_id: int) -> bool:
        """Whether the request has a slot and blocks: it runs, or has left with a plan in flight."""
        return request_id in self._running or request_id in self._leaving

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocks=self._kv_cache.num_blocks,
            num_free_blocks=self._kv_cache.num_free_blocks,
            num_preemptions=self._num_preemptions,
            num_prefix_queries=self._kv_cache.num_queries,
            num_prefix_hits=self._kv_cache.num_hits,
        )

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises :class:`OverloadedError` when the queue is full, :class:`PromptTooLongError` when the request
        could not end even with the whole cache to itself, :class:`InvalidRequestError` when it is empty.
        """
        assert not self.is_holding(request.request_id)
        assert request.request_id not in self._waiting
        max_length = self.config.max_length_of(request)
        limit = self.config.max_num_queued_requests
        if len(self._waiting) >= limit:
            raise OverloadedError(
                f"{limit} requests are waiting already (--max-num-queued-requests); try again later"
            )
        self._waiting[request.request_id] = Sequence(request, max_length)

    def abort(self, request_id: int) -> bool:
        """Drop a request, wherever it is; nothing more comes out for it. False if there is none to drop."""
        if self._waiting.pop(request_id, None) is not None:
            return True
        sequence = self._running.get(request_id) or self._leaving.get(request_id)
        if sequence is None or sequence.status is SequenceStatus.FINISHED:
            return False
        self._leave(sequence, SequenceStatus.FINISHED)
        self._give_back(sequence)
        return True

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes, so that nothing computed so far is used by a later request.

        False, and nothing done, while any request holds blocks; with ``preempt_running`` those that run are
        thrown out first, to be computed anew.
        """
        if preempt_running:
            while self._running:
                self._preempt_last()
        elif self._running or self._leaving:
            return False
        self._kv_cache.reset_prefix_cache()
        return True

    def schedule(self) -> StepPlan | None:
        """The next plan, or None when nothing can run before something is added or committed."""
        assert len(self._in_flight) < MAX_PLANS_IN_FLIGHT
        draft = _Draft(self.config.max_num_batched_tokens)
        self._schedule_running(draft)
        self._admit_waiting(draft)
        if not draft.rows:
            return None
        plan = StepPlan(step_id=self._num_plans, rows=tuple(draft.rows))
        self._num_plans += 1
        self._in_flight.append((plan, draft.sequences))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Take in what a plan computed; plans are committed in the order they were made.

        Returns one output for each row that gave a token or failed, in the order of the rows.
        """
        expected, sequences = self._in_flight.popleft()
        assert plan is expected, "plans are committed in the order they were made"
        assert result.step_id == plan.step_id
        outputs = []
        for row, sequence, row_result in zip(plan.rows, sequences, split_result(plan, result), strict=True):
            sequence.commit(row)
            if sequence.status is not SequenceStatus.FINISHED:
                self._commit_blocks(sequence, has_failed=row_result.error is not None)
                output = take_in(sequence, row_result)
                if output is not None:
                    outputs.append(output)
                    if output.finish_reason is not None:
                        self._leave(sequence, SequenceStatus.FINISHED)
            if sequence.status is not SequenceStatus.RUNNING:
                self._give_back(sequence)
        return outputs

    def _commit_blocks(self, sequence: Sequence, *, has_failed: bool) -> None:
        if has_failed:
            self._kv_cache.distrust(sequence.blocks)
        else:
            self._kv_cache.commit(sequence.blocks, sequence.token_ids, sequence.num_computed_tokens)

    def _schedule_running(self, draft: _Draft) -> None:
        for sequence in self._in_scheduling_order():
            if draft.budget == 0:
                return
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # thrown out by one before it
            num_tokens = draft.num_tokens_for(sequence)
            if self._grow(sequence, num_tokens):
                draft.add(sequence, num_tokens)

    def _in_scheduling_order(self) -> Iterator[Sequence]:
        decodes, prefills = [], []
        for sequence in self._running.values():
            num_pending_tokens = sequence.num_pending_tokens
            if num_pending_tokens == 1:
                decodes.append(sequence)
            elif num_pending_tokens:
                prefills.append(sequence)
        return chain(decodes, prefills)

    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Own the blocks of the sequence's next positions; False if there are not enough.

        A sequence thrown out here has no row in the draft yet: it was admitted after this one, and only
        decodes, which come first and in order of admission, ever get here without a block.
        """
        while not self._kv_cache.grow(sequence.blocks, sequence.num_scheduled_tokens + num_tokens):
            if self._leaving or self._preempt_last() is sequence:
                return False
        return True

    def _preempt_last(self) -> Sequence:
        sequence = next(reversed(self._running.values()))
        self._num_preemptions += 1
        self._leave(sequence, SequenceStatus.PREEMPTED)
        self._give_back(sequence)
        return sequence

    def _admit_waiting(self, draft: _Draft) -> None:
        for sequence in list(islice(self._waiting.values(), len(self._free_slots))):
            if not draft.budget:
                return
            admission = self._kv_cache.admit(sequence.blocks, sequence.token_ids, len(self._running))
            if admission is Admission.NO_ROOM:
                return
            if admission is Admission.ADMITTED:
                self._start(sequence)
                num_tokens = draft.num_tokens_for(sequence)
                has_grown = self._grow(sequence, num_tokens)
                assert has_grown, "a newcomer's blocks are promised"
                draft.add(sequence, num_tokens)

    def _start(self, sequence: Sequence) -> None:
        request_id = sequence.request.request_id
        del self._waiting[request_id]
        self._running[request_id] = sequence
        if sequence.num_cached_tokens is None:
            self._kv_cache.count_lookup(sequence.blocks, len(sequence.token_ids))
        num_cached_tokens = sequence.blocks.num_cached_blocks * self.config.block_size
        sequence.admit(self._free_slots.pop(), num_cached_tokens)

    def _leave(self, sequence: Sequence, status: SequenceStatus) -> None:
        self._running.pop(sequence.request.request_id, None)
        self._leaving[sequence.request.request_id] = sequence
        sequence.status = status

    def _give_back(self, sequence: Sequence) -> None:
        """Free the slot and the blocks of a leaving sequence, unless a plan in flight uses them."""
        if sequence.num_rows_in_flight:
            return
        assert sequence.slot is not None
        request_id = sequence.request.request_id
        del self._leaving[request_id]
        self._kv_cache.release(sequence.blocks)
        self._free_slots.append(sequence.slot)
        is_preempted = sequence.status is SequenceStatus.PREEMPTED
        sequence.reset(SequenceStatus.WAITING if is_preempted else SequenceStatus.FINISHED)
        if is_preempted:
            self._waiting[request_id] = sequence
            self._waiting.move_to_end(request_id, last=False)

    def check_integrity(self) -> None:
        """Assert that the books agree with each other; cost grows with the number of blocks."""
        holders = [*self._running.values(), *self._leaving.values()]
        self._kv_cache.check_integrity([sequence.blocks for sequence in holders])
        slots = [*self._free_slots, *(sequence.slot for sequence in holders)]
        assert Counter(slots) == Counter(range(self.config.max_num_seqs)), "each slot is in one place"
        for plan, _ in self._in_flight:
            assert plan.num_tokens <= self.config.max_num_batched_tokens
        check_sequences(
            waiting=self._waiting.values(),
            running=self._running.values(),
            leaving=self._leaving.values(),
            in_flight=Counter(sequence for _, sequences in self._in_flight for sequence in sequences),
            block_size=self.config.block_size,
        )
