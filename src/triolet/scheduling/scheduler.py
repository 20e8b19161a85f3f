"""Continuous batching: makes one :class:`StepPlan` after another out of the requests there are.

**Order.** Under one token budget: first the running sequences that need one token (decodes), with guesses at
the tokens after it where that pays; then prompts, in chunks. Of the budget for prompts the best ranked one is
sure of half; before it takes the rest, prompts with fewer tokens left go ahead, fewest first, then those of
waiting requests, so that a short prompt does not wait for a long one to end. While others decode, chunks of
prompts that are too long for one step are cut to what those others can bear: to
``long_prefill_token_threshold`` tokens, or without one to what :mod:`triolet.scheduling.prompt_pace` says. A
sequence is promised the blocks of all its known tokens
when it is admitted, so that only decodes ever ask for more. One that is held back, because what it needs next
is being computed, is overtaken, but not for the slot that it will take.

**Preemption.** A decode that finds no free block throws out the worst ranked sequence (perhaps itself), which
later computes all its tokens anew. The best ranked is never thrown out, so it ends, and then the next best.
A newcomer throws out only sequences of a worse priority, for a slot or for blocks.

**Pipelining.** Up to two plans may be in flight. While something is leaving, its blocks are about to come
back, so what lacks a block waits rather than throw out one more. How many tokens a row with guesses gives is
not known before it is committed: until then its sequence is in no further plan. Nor is one whose tokens the
host chooses, which it cannot feed to a plan that is under way; the other rows go on without it.

This module knows neither torch, nor text, nor a clock.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum, auto

from triolet.errors import OverloadedError
from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, Request, TokenOutput
from triolet.scheduling.config import MAX_PLANS_IN_FLIGHT, SchedulerConfig
from triolet.scheduling.kv_cache_manager import Admission
from triolet.scheduling.outputs import RowResult, split_result, take_in
from triolet.scheduling.prompt_pace import MIN_CHUNK, PromptPace
from triolet.scheduling.sequence import Sequence, SequenceStatus
from triolet.scheduling.sequence_table import SequenceTable
from triolet.scheduling.speculation import NO_DRAFT, Draft, Speculator
from triolet.statistics import SchedulerStatistics

__all__ = ["MAX_PLANS_IN_FLIGHT", "Pause", "Scheduler", "SchedulerConfig"]


class Pause(Enum):
    """What is not to be scheduled."""

    NOTHING = auto()
    NEWCOMERS = auto()
    """Requests that have not begun; those that have go on to their end."""
    ALL = auto()


@dataclass(slots=True)
class _Step:
    """A plan in the making: its rows, the sequence of each, and the tokens still to be given out.

    ``allowance``: seconds that long prompts may still add to it; None where nothing waits for them.
    """

    budget: int
    allowance: float | None = None
    rows: list[PlanRow] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, num_tokens: int, draft: Draft = NO_DRAFT) -> None:
        self.budget -= num_tokens + draft.num_tokens
        self.rows.append(sequence.schedule(num_tokens, draft))
        self.sequences.append(sequence)


class Scheduler:
    """Decides what each step computes.

    Call :meth:`schedule` for a plan, have it run, then :meth:`commit` its result; with a second plan made
    before the first is committed, or without. Not safe to call from several threads at once.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self._table = SequenceTable(config)
        self._speculator = Speculator(config.speculation, config.num_speculative_tokens, config.row_group)
        self._pace = PromptPace()
        self._in_flight: deque[tuple[StepPlan, list[Sequence]]] = deque()
        self._num_plans = 0
        self._pause = Pause.NOTHING

    @property
    def num_running(self) -> int:
        return len(self._table.running)

    @property
    def num_waiting(self) -> int:
        return len(self._table.waiting)

    @property
    def has_unfinished(self) -> bool:
        """Whether anything is queued, running or not given back yet. If not, no plan is in flight."""
        return bool(self._table.waiting or self._table.running or self._table.leaving)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to schedule or to commit before more is added or the pause ends."""
        match self._pause:
            case Pause.NOTHING:
                return self.has_unfinished
            case Pause.NEWCOMERS:
                table = self._table
                return bool(table.running or table.leaving or table.waiting.num_returned)
            case Pause.ALL:
                return bool(self._in_flight)

    def is_holding(self, request_id: int) -> bool:
        """Whether the request has a slot and blocks: it runs, or has left with a plan in flight."""
        return self._table.is_holding(request_id)

    def statistics(self) -> SchedulerStatistics:
        kv_cache = self._table.kv_cache
        return SchedulerStatistics(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_blocks=kv_cache.num_blocks,
            num_free_blocks=kv_cache.num_free_blocks,
            num_preemptions=self._table.num_preemptions,
            num_prefix_queries=kv_cache.num_queries,
            num_prefix_hits=kv_cache.num_hits,
            num_draft_tokens=self._speculator.num_draft_tokens,
            num_accepted_tokens=self._speculator.num_accepted_tokens,
        )

    def add(self, *requests: Request) -> None:
        """Queue requests that belong together, all of them or none.

        Raises :class:`OverloadedError` when the queue is full, :class:`PromptTooLongError` when one of them
        could not end even with the whole cache to itself, :class:`InvalidRequestError` when one is empty.
        """
        assert not any(request.request_id in self._table for request in requests)
        max_lengths = [self.config.max_length_of(request) for request in requests]
        self.check_room(len(requests))
        self._check_queued_tokens(sum(len(request.prompt_token_ids) for request in requests))
        for request, max_length in zip(requests, max_lengths, strict=True):
            self._table.waiting.add(Sequence(request, max_length, self._speculator.start()))

    def check_room(self, num_requests: int = 1) -> None:
        """Raises :class:`OverloadedError` where so many would be too many, however short they are."""
        limit = self.config.max_num_queued_requests
        # Those that the next step has a slot for have only just come.
        if self.num_running + self.num_waiting + num_requests > self.config.max_num_seqs + limit:
            raise OverloadedError(
                f"{self.num_waiting} requests are waiting already, and with {num_requests} more they would "
                f"exceed {limit} (--max-num-queued-requests); try again later"
            )

    def _check_queued_tokens(self, num_tokens: int) -> None:
        num_waiting, limit = self._table.waiting.num_prompt_tokens, self.config.max_num_queued_tokens
        if num_waiting and num_waiting + num_tokens > limit:
            raise OverloadedError(
                f"the prompts that wait have {num_waiting} tokens; with the {num_tokens} of this one they "
                f"would exceed {limit} (--max-num-queued-tokens); try again later"
            )

    def abort(self, request_id: int) -> bool:
        """Drop a request, wherever it is; nothing more comes out for it. False if there is none to drop."""
        return self._table.drop(request_id)

    def expire(self, request_id: int) -> TokenOutput | None:
        """End a request, wherever it is, because it is late; its last output, None if it has ended already.

        A token that a plan in flight samples for it is dropped.
        """
        if not self._table.drop(request_id):
            return None
        return TokenOutput(request_id=request_id, finish_reason=FinishReason.TIMEOUT)

    def pause(self, what: Pause) -> None:
        """Schedule only what ``what`` leaves, from the next plan on; plans in flight are not touched."""
        self._pause = what

    def preempt_all(self) -> None:
        """Throw out all that runs, to be computed anew; what a plan in flight uses comes back with it."""
        for sequence in list(self._table.running.values()):
            self._table.preempt(sequence)

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> bool:
        """Forget all cached prefixes, so that nothing computed so far is used by a later request.

        False, and nothing done, while any request holds blocks; with ``preempt_running`` those that run are
        thrown out first, to be computed anew.
        """
        if preempt_running:
            self.preempt_all()
        elif self._table.running or self._table.leaving:
            return False
        self._table.kv_cache.reset_prefix_cache()
        return True

    def schedule(self) -> StepPlan | None:
        """The next plan, or None when nothing can run before something is added, committed or resumed."""
        assert len(self._in_flight) < MAX_PLANS_IN_FLIGHT
        if self._pause is Pause.ALL:
            return None
        step = _Step(self.config.max_num_batched_tokens)
        self._make_room_for_urgent()
        self._schedule_decodes(step)
        self._schedule_prompts(step)
        if not step.rows:
            return None
        plan = StepPlan(step_id=self._num_plans, rows=tuple(step.rows))
        self._num_plans += 1
        self._in_flight.append((plan, step.sequences))
        return plan

    def commit(self, plan: StepPlan, result: StepResult) -> list[TokenOutput]:
        """Take in what a plan computed; plans are committed in the order they were made.

        Returns one output for each row that gave a token or failed, in the order of the rows, and for parts
        of prompts whose progress is reported.
        """
        expected, sequences = self._in_flight.popleft()
        assert plan is expected, "plans are committed in the order they were made"
        assert result.step_id == plan.step_id
        if result.seconds is not None:
            self._speculator.observe(plan, result.seconds)
            self._pace.observe(plan, result.seconds)
        outputs = []
        for row, sequence, row_result in zip(plan.rows, sequences, split_result(plan, result), strict=True):
            sequence.commit(row, len(row_result.token_ids))
            if sequence.status is not SequenceStatus.FINISHED:
                output = self._take_in(row, sequence, row_result)
                if output is not None:
                    outputs.append(output)
            if sequence.status is not SequenceStatus.RUNNING and self.is_holding(sequence.request.request_id):
                self._table.give_back(sequence)
        return outputs

    def _take_in(self, row: PlanRow, sequence: Sequence, result: RowResult) -> TokenOutput | None:
        output = take_in(sequence, row, result)
        if result.error is not None:
            self._table.kv_cache.distrust(sequence.blocks)
        else:
            num_tokens = min(sequence.num_computed_tokens, len(sequence.token_ids))
            self._table.kv_cache.commit(sequence.blocks, sequence.token_ids, num_tokens)
            if row.num_draft_tokens and sequence.speculation is not None:
                num_accepted = len(result.token_ids) - 1
                self._speculator.record(sequence.speculation, row.num_draft_tokens, num_accepted)
        if output is not None:
            self._table.waiting.charge(sequence, len(output.token_ids))
            if output.finish_reason is not None:
                self._table.end(sequence)
        return output

    # ------------------------------------------------------------------ who gets what of a step

    def _make_room_for_urgent(self) -> None:
        """Admit waiting requests that are more urgent than some that run, at the cost of those."""
        if self.config.scheduling_policy != "priority":
            return
        while self._table.running and not self._table.leaving:
            sequence = self._table.waiting.most_urgent(returned_only=self._pause is Pause.NEWCOMERS)
            victim = self._table.worst_running()
            if sequence is None or victim.priority <= sequence.priority:
                return
            admission = self._table.admit(sequence) if self._table.num_free_slots else Admission.NO_ROOM
            if admission is Admission.HELD_BACK:
                return
            if admission is Admission.NO_ROOM:
                self._table.preempt(victim)

    def _schedule_decodes(self, step: _Step) -> None:
        decodes = [
            sequence
            for sequence in sorted(self._table.running.values(), key=lambda sequence: sequence.rank)
            if self._is_ready_to_decode(sequence) and self._grow_or_preempt(sequence)
        ]
        if self.config.speculation == "off":
            for sequence in decodes:
                step.add(sequence, 1)
        else:
            self._add_with_drafts(step, decodes)

    def _add_with_drafts(self, step: _Step, decodes: list[Sequence]) -> None:
        """Add decodes and, as far as budget and free blocks reach, guesses at what comes after them."""
        break_even = self._speculator.break_even(len(decodes))
        room = min(step.budget - len(decodes), self._speculator.room(len(decodes)))
        for index, sequence in enumerate(decodes):
            share = -(-room // (len(decodes) - index))
            draft = self._draft(sequence, share, break_even)
            step.add(sequence, 1, draft)
            room -= draft.num_tokens

    def _is_ready_to_decode(self, sequence: Sequence) -> bool:
        if sequence.status is not SequenceStatus.RUNNING or sequence.num_pending_tokens != 1:
            return False
        if not sequence.num_samples_in_flight:
            return True
        if sequence.request.is_chosen_by_host:
            return False
        if sequence.speculation is None:
            return True
        # Guesses need the token in flight, and where they pay they gain more than a step under way does.
        return not sequence.speculation.is_due

    def _grow_or_preempt(self, sequence: Sequence) -> bool:
        """Have a block for the sequence's next position; False if it has to do without.

        A sequence thrown out here has no row in the step yet: it is ranked below this one.
        """
        while not self._table.grow(sequence, 1):
            if self._table.leaving:
                return False
            victim = self._table.worst_running()
            self._table.preempt(victim)
            if victim is sequence:
                return False
        return True

    def _draft(self, sequence: Sequence, room: int, break_even: float) -> Draft:
        if sequence.speculation is None:
            return NO_DRAFT
        if sequence.num_samples_in_flight or not sequence.is_begun:
            sequence.speculation.skip()
            return NO_DRAFT
        limit = min(room, sequence.max_length - len(sequence.token_ids) - 1)
        draft = self._speculator.propose(sequence.speculation, sequence.token_ids, limit, break_even)
        return draft if self._table.grow(sequence, 1 + draft.num_tokens) else NO_DRAFT

    def _prompts(self) -> list[Sequence]:
        """The running sequences with more than one token to compute, the best ranked first."""
        prompts = [item for item in self._table.running.values() if item.num_pending_tokens > 1]
        return sorted(prompts, key=lambda sequence: sequence.rank)

    def _schedule_prompts(self, step: _Step) -> None:
        if step.rows:
            step.allowance = self._pace.allowance
        prompts = self._prompts()
        if prompts:
            first = prompts.pop(0)
            num_left = first.num_pending_tokens
            reserved = min(self._chunk_of(step, first), -(-step.budget // 2))
            step.budget -= reserved
            prompts.sort(key=lambda sequence: sequence.num_pending_tokens)
            shorter = [sequence for sequence in prompts if sequence.num_pending_tokens < num_left]
            self._add_chunks(step, shorter)
            self._admit_waiting(step, max_length=num_left - 1)
            step.budget += reserved
            self._add_chunks(step, [first, *prompts[len(shorter) :]])
        self._admit_waiting(step, max_length=self.config.max_model_len)

    def _chunk_of(self, step: _Step, sequence: Sequence) -> int:
        """How many tokens of a prompt the step can take, and those who generate can bear."""
        num_tokens = min(sequence.num_pending_tokens, step.budget)
        has_decodes = step.rows and step.rows[0].num_tokens - step.rows[0].num_draft_tokens == 1
        if has_decodes and self.config.long_prefill_token_threshold:
            return min(num_tokens, self.config.long_prefill_token_threshold)
        is_long = len(sequence.token_ids) > self.config.max_num_batched_tokens
        token_seconds = self._pace.token_seconds(sequence.num_scheduled_tokens)
        if step.allowance is None or not is_long or not token_seconds:
            return num_tokens
        return min(num_tokens, max(MIN_CHUNK, int(step.allowance / token_seconds)))

    def _add_chunks(self, step: _Step, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            num_tokens = self._chunk_of(step, sequence)
            if not num_tokens:
                continue
            has_grown = self._table.grow(sequence, num_tokens)
            assert has_grown, "the blocks of known tokens are promised at admission"
            if step.allowance is not None:
                step.allowance -= num_tokens * self._pace.token_seconds(sequence.num_scheduled_tokens)
            step.add(sequence, num_tokens)

    def _admit_waiting(self, step: _Step, *, max_length: int) -> None:
        """Start waiting requests in their order, as long as the next has no more than so many tokens."""
        held_back: set[int] = set()
        while step.budget and self._table.num_free_slots > len(held_back):
            sequence = self._next_waiting(held_back)
            if sequence is None or len(sequence.token_ids) > max_length:
                return
            match self._table.admit(sequence):
                case Admission.NO_ROOM:
                    return
                case Admission.HELD_BACK:
                    held_back.add(sequence.request.request_id)
                case Admission.ADMITTED:
                    self._add_chunks(step, [sequence])

    def _next_waiting(self, held_back: set[int]) -> Sequence | None:
        if not self._table.waiting:
            return None
        return self._table.waiting.next(held_back, returned_only=self._pause is Pause.NEWCOMERS)

    def check_integrity(self) -> None:
        """Assert that the books agree with each other; cost grows with the number of blocks."""
        for plan, _ in self._in_flight:
            assert plan.num_tokens <= self.config.max_num_batched_tokens
        in_flight = Counter(sequence for _, sequences in self._in_flight for sequence in sequences)
        self._table.check_integrity(in_flight)
