"""A runner without a model, an oracle without a scheduler, and a harness that holds one against the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Any

from triolet.plan import LayerGroup, PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, Request, RequestOptions, TokenOutput
from triolet.scheduling.scheduler import Pause, Scheduler, SchedulerConfig
from triolet.scheduling.sequence import Sequence

VOCAB_SIZE = 11


def make_config(
    *, num_blocks: int = 64, windows: Items[int | None] = (None,), **changes: Any
) -> SchedulerConfig:
    """``num_blocks`` for each group of layers, whose windows are ``windows``."""
    defaults: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_num_queued_requests": 100,
        "max_model_len": 64,
        "block_size": 4,
        "layer_groups": tuple(LayerGroup(num_blocks=num_blocks, window=window) for window in windows),
    }
    return SchedulerConfig(**{**defaults, **changes})


def make_request(
    request_id: int,
    num_prompt_tokens: int,
    max_tokens: int,
    *stops: int,
    family: int | None = None,
    **more: Any,
) -> Request:
    """Prompts of the same family, each request's own if not given, start with the same tokens."""
    first = (request_id if family is None else family) * 7
    prompt = tuple((first + index) % VOCAB_SIZE for index in range(num_prompt_tokens))
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        seed=request_id * 31,
        stop_token_ids=frozenset(stops),
        **more,
    )


def make_sequence(request_id: int, *, key: str = "", priority: int = 0) -> Sequence:
    options = RequestOptions(fairness_key=key, priority=priority)
    sequence = Sequence(replace(make_request(request_id, 4, 4), options=options), 8)
    sequence.arrival = request_id
    return sequence


def shape(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each row."""
    assert plan is not None
    return [(row.request.request_id, row.start, row.num_tokens) for row in plan.rows]


def sample(request: Request, token_ids: Items[int]) -> int:
    """The token after ``token_ids``: depends on the seed, the position and every token before.

    Every other request repeats itself before long: its tokens depend on the two before.
    """
    if request.seed % 2:
        return hash((request.seed, tuple(token_ids[-2:]))) % VOCAB_SIZE
    return hash((request.seed, len(token_ids), tuple(token_ids))) % VOCAB_SIZE


def guess(request: Request, token_ids: Items[int]) -> int:
    """A draft model's token after ``token_ids``; two out of three are right."""
    token_id = sample(request, token_ids)
    return token_id if len(token_ids) % 3 else (token_id + 1) % VOCAB_SIZE


def expected_output(request: Request, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What the request generates when it is alone and nothing is batched, chunked or cached."""
    token_ids = list(request.prompt_token_ids)
    while True:
        token_ids.append(sample(request, token_ids))
        output = token_ids[len(request.prompt_token_ids) :]
        if token_ids[-1] in request.stop_token_ids:
            return output, FinishReason.STOP
        if len(output) == request.max_tokens or len(token_ids) == max_model_len:
            return output, FinishReason.LENGTH


@dataclass
class Slot:
    """What a runner remembers of a slot: the sequence's tokens so far, and what is computed of them.

    ``contents``: what the cache is to hold for each position: it depends on all tokens up to there.
    """

    request_id: int
    tables: list[list[int]]
    token_ids: list[int] = field(default_factory=list)
    contents: list[int] = field(default_factory=list)
    last_token: int | None = None
    is_broken: bool = False

    def append(self, token_id: int) -> None:
        before = self.contents[-1] if self.contents else 0
        self.token_ids.append(token_id)
        self.contents.append(hash((before, token_id)))


class FakeRunner:
    """Runs plans from nothing but what is in them.

    Its KV cache holds, for each place of each block of each group, what was written there last. Each row
    checks that all it sees is what its own tokens up to there make: so a block that is shared wrongly, taken
    away, filled in the wrong order or given back while still seen shows at once. What a broken row writes is
    wrong. Plans run when their result is asked for, but what they use is checked against the plans in flight
    when they are submitted.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.block_size = config.block_size
        self.windows = [group.window for group in config.layer_groups]
        self.num_blocks = [group.num_blocks for group in config.layer_groups]
        self.slots: dict[int, Slot] = {}
        self.cache: dict[tuple[int, int, int], int] = {}
        self.in_flight: deque[StepPlan] = deque()
        self.tables: dict[int, list[list[int]]] = {}
        self.num_computed = 0

    def submit(self, plan: StepPlan) -> None:
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        slots_in_use = {row.slot: row.request.request_id for flown in self.in_flight for row in flown.rows}
        for row in plan.rows:
            request_id = row.request.request_id
            assert slots_in_use.get(row.slot, request_id) == request_id, "the slot is in flight for another"
            assert row.token_ids or not row.request.is_chosen_by_host, "nobody can know the token"
            self._add_blocks(row, self.tables)
        others = [row for flown in self.in_flight for row in flown.rows] + list(plan.rows)
        for row in plan.rows:
            written = self._blocks(row, row.start)
            for other in others:
                if other.request.request_id != row.request.request_id:
                    assert not written & self._seen(other), "a block is written that another row sees"
        self.in_flight.append(plan)

    def _add_blocks(self, row: PlanRow, tables: dict[int, list[list[int]]]) -> None:
        assert len(row.new_block_ids) == len(self.windows)
        if row.history is not None:
            assert row.first_new_block == 0
            assert row.history[row.start : row.start + row.num_tokens] == row.token_ids
            tables[row.slot] = [[] for _ in self.windows]
        for table, new_block_ids, num_blocks in zip(
            tables[row.slot], row.new_block_ids, self.num_blocks, strict=True
        ):
            assert row.first_new_block == len(table)
            assert all(0 <= block_id < num_blocks for block_id in new_block_ids)
            table += new_block_ids
            assert len(table) * self.block_size >= row.start + row.num_tokens

    def _seen(self, row: PlanRow) -> set[tuple[int, int]]:
        return self._blocks(row, 0)

    def _blocks(self, row: PlanRow, first: int) -> set[tuple[int, int]]:
        """(group, block) of the positions from ``first`` to the row's end that the row sees."""
        end = row.start + row.num_tokens
        return {
            (group, self.tables[row.slot][group][position // self.block_size])
            for group, window in enumerate(self.windows)
            for position in range(max(first, self._first_seen(row.start, window)), end)
        }

    def _first_seen(self, position: int, window: int | None) -> int:
        return 0 if window is None else max(0, position - window + 1)

    def execute(self, errors: dict[int, str] | None = None) -> tuple[StepPlan, StepResult]:
        plan = self.in_flight.popleft()
        errors = errors or {}
        sampled = [self._run(row, is_broken=index in errors) for index, row in enumerate(plan.rows)]
        token_ids = tuple(token_ids for token_ids in sampled if token_ids)
        return plan, StepResult(
            step_id=plan.step_id, token_ids=token_ids, logprobs=(None,) * len(token_ids), errors=errors
        )

    def _run(self, row: PlanRow, *, is_broken: bool) -> tuple[int, ...]:
        slot = self._slot_of(row)
        slot.is_broken |= is_broken
        assert len(slot.token_ids) == row.start, "positions are computed once each, in order"
        for position, token_id in enumerate(self._input_tokens(row, slot), row.start):
            slot.append(token_id)
            for group in range(len(self.windows)):
                place = self._place(slot, group, position)
                self.cache[place] = -1 if slot.is_broken else slot.contents[position]
        self._check_seen(slot, row.start)
        self.num_computed += row.num_tokens
        return self._sample(row, slot) if row.is_sampled else ()

    def _input_tokens(self, row: PlanRow, slot: Slot) -> tuple[int, ...]:
        if len(row.token_ids) == row.num_tokens:
            return row.token_ids
        if not row.token_ids:
            assert (row.num_tokens, row.num_draft_tokens) == (1, 0)
            assert slot.last_token is not None, "nothing was sampled in the slot yet"
            return (slot.last_token,)
        assert len(row.token_ids) == row.num_tokens - row.num_draft_tokens
        token_ids = [*slot.token_ids, *row.token_ids]
        for _ in range(row.num_draft_tokens):
            token_ids.append(guess(row.request, token_ids))
        return tuple(token_ids[row.start :])

    def _sample(self, row: PlanRow, slot: Slot) -> tuple[int, ...]:
        """Keep the guesses as far as they are right, and add the token after them."""
        end = len(slot.token_ids) - row.num_draft_tokens
        token_ids = [sample(row.request, slot.token_ids[:end])]
        while end < len(slot.token_ids) and slot.token_ids[end] == token_ids[-1]:
            end += 1
            token_ids.append(sample(row.request, slot.token_ids[:end]))
        del slot.token_ids[end:], slot.contents[end:]
        slot.last_token = token_ids[-1]
        return tuple(token_ids)

    def _slot_of(self, row: PlanRow) -> Slot:
        if row.history is not None:
            slot = self.slots[row.slot] = Slot(row.request.request_id, [])
            for token_id in row.history[: row.start]:
                slot.append(token_id)
        slot = self.slots[row.slot]
        assert slot.request_id == row.request.request_id, "the slot was given away"
        tables = {row.slot: slot.tables}
        self._add_blocks(row, tables)
        slot.tables = tables[row.slot]
        return slot

    def _place(self, slot: Slot, group: int, position: int) -> tuple[int, int, int]:
        return group, slot.tables[group][position // self.block_size], position % self.block_size

    def _check_seen(self, slot: Slot, start: int) -> None:
        for group, window in enumerate(self.windows):
            for position in range(self._first_seen(start, window), len(slot.token_ids)):
                content = self.cache[self._place(slot, group, position)]
                assert slot.is_broken or content == slot.contents[position], "not what its tokens make"


@dataclass
class Outcome:
    """What came out for a request."""

    request: Request
    token_ids: list[int] = field(default_factory=list)
    last: TokenOutput | None = None
    is_aborted: bool = False


class Harness:
    """A scheduler, a runner and what has come out so far; checks every output against the oracle."""

    def __init__(self, config: SchedulerConfig, depth: int = 1) -> None:
        self.config = config
        self.depth = depth
        self.scheduler = Scheduler(config)
        self.runner = FakeRunner(config)
        self.outcomes: dict[int, Outcome] = {}

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.outcomes[request.request_id] = Outcome(request)

    def abort(self, request_id: int) -> None:
        is_live = not self.has_ended(request_id)
        assert self.scheduler.abort(request_id) == is_live
        self.outcomes[request_id].is_aborted |= is_live

    def expire(self, request_id: int) -> TokenOutput | None:
        output = self.scheduler.expire(request_id)
        assert (output is not None) == (not self.has_ended(request_id))
        if output is not None:
            self.outcomes[request_id].last = output
            self._check(self.outcomes[request_id])
        return output

    def has_ended(self, request_id: int) -> bool:
        return self.outcomes[request_id].last is not None or self.outcomes[request_id].is_aborted

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            assert 0 < plan.num_tokens <= self.config.max_num_batched_tokens
            assert not any(self.has_ended(row.request.request_id) for row in plan.rows)
            self.runner.submit(plan)
        self._check_priority()
        return plan

    def _check_priority(self) -> None:
        """Nobody waits for a slot or blocks that a less urgent one has."""
        table = self.scheduler._table
        waiting = table.waiting.most_urgent()
        is_paused = self.scheduler._pause is not Pause.NOTHING
        is_held_back = self.config.enable_prefix_caching  # perhaps
        if waiting is not None and table.running and not (table.leaving or is_paused or is_held_back):
            assert table.worst_running().priority <= waiting.priority

    def check_fairness(self) -> None:
        """Of the callers that wait at one priority none is ahead by more than can run at once."""
        limit = self.config.max_num_seqs * self.config.max_model_len
        for priority in range(-3, 4):
            times = self.scheduler._table.waiting.virtual_times(priority).values()
            assert max(times, default=0) - min(times, default=0) <= limit

    def commit(
        self, errors: dict[int, str] | None = None, seconds_of: Callable[[StepPlan], float] | None = None
    ) -> list[TokenOutput]:
        plan, result = self.runner.execute(errors)
        if seconds_of is not None:
            result = replace(result, seconds=seconds_of(plan))
        outputs = self.scheduler.commit(plan, result)
        for output in outputs:
            outcome = self.outcomes[output.request_id]
            assert outcome.last is None, "an output after the last one"
            assert not outcome.is_aborted, "an output after the abort"
            outcome.token_ids += output.token_ids
            if output.finish_reason is not None:
                outcome.last = output
                self._check(outcome)
        return outputs

    def step_plan(self, seconds_of: Callable[[StepPlan], float] | None = None) -> StepPlan:
        """Schedule one plan and carry it out, in so much time; the plan."""
        plan = self.schedule()
        assert plan is not None
        self.commit(seconds_of=seconds_of)
        return plan

    def step(self) -> list[TokenOutput]:
        """Schedule as many plans as may be in flight, then commit the oldest."""
        while len(self.runner.in_flight) < self.depth and self.schedule() is not None:
            pass
        self.scheduler.check_integrity()
        outputs = self.commit()
        self.scheduler.check_integrity()
        return outputs

    def run(self, max_steps: int = 10_000) -> int:
        """Step until everything has ended; the number of steps that took."""
        for num_steps in range(max_steps):
            if not self.scheduler.has_unfinished:
                assert not self.scheduler.has_work
                assert not self.runner.in_flight
                self._check_idle()
                return num_steps
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def _check_idle(self) -> None:
        statistics = self.scheduler.statistics()
        assert statistics.num_free_blocks == statistics.num_blocks
        assert statistics.num_running == statistics.num_waiting == 0
        assert all(self.has_ended(request_id) for request_id in self.outcomes)

    def _check(self, outcome: Outcome) -> None:
        assert outcome.last is not None
        token_ids, finish_reason = expected_output(outcome.request, self.config.max_model_len)
        if outcome.last.finish_reason in (FinishReason.ERROR, FinishReason.TIMEOUT):
            assert outcome.token_ids == token_ids[: len(outcome.token_ids)]
            return
        assert outcome.token_ids == token_ids
        assert outcome.last.finish_reason is finish_reason
        is_stop = finish_reason is FinishReason.STOP
        assert outcome.last.stop_token_id == (token_ids[-1] if is_stop else None)
