"""A runner without a model, an oracle without a scheduler, and a harness that holds one against the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, Request, TokenOutput
from triolet.scheduling.scheduler import Scheduler, SchedulerConfig

VOCAB_SIZE = 11


def make_config(**changes: Any) -> SchedulerConfig:
    defaults: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_num_queued_requests": 100,
        "max_model_len": 64,
        "block_size": 4,
        "num_blocks": 64,
    }
    return SchedulerConfig(**{**defaults, **changes})


def make_request(request_id: int, num_prompt_tokens: int, max_tokens: int, *stops: int) -> Request:
    prompt = tuple((request_id * 7 + index) % VOCAB_SIZE for index in range(num_prompt_tokens))
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        seed=request_id * 31,
        stop_token_ids=frozenset(stops),
    )


def shape(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each row."""
    assert plan is not None
    return [(row.request.request_id, row.start, row.num_tokens) for row in plan.rows]


def sample(request: Request, token_ids: Sequence[int]) -> int:
    """The token after ``token_ids``: depends on the seed, the position and every token before."""
    return hash((request.seed, len(token_ids), tuple(token_ids))) % VOCAB_SIZE


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
    """What a runner remembers of a slot."""

    request_id: int
    block_table: list[int] = field(default_factory=list)
    num_computed: int = 0
    last_token: int | None = None


class FakeRunner:
    """Runs plans from nothing but what is in them.

    Its KV cache holds, for each place of each block, the request, position and token written there last. A
    token is sampled from the context read back through the block table, so a block that is shared, taken
    away or filled in the wrong order shows at once. Plans run when their result is asked for, but what they
    use is checked against the plans in flight when they are submitted.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[int, Slot] = {}
        self.cache: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.in_flight: deque[tuple[StepPlan, dict[int, int]]] = deque()
        self.tables: dict[int, list[int]] = {}
        self.num_computed = 0

    def submit(self, plan: StepPlan) -> None:
        slots_in_use = {row.slot: row.request.request_id for flown, _ in self.in_flight for row in flown.rows}
        blocks_in_use = {block for _, owners in self.in_flight for block in owners}
        owners: dict[int, int] = {}
        for row in plan.rows:
            request_id = row.request.request_id
            assert slots_in_use.get(row.slot, request_id) == request_id, "the slot is in flight for another"
            assert not blocks_in_use.intersection(*row.new_block_ids), "a new block is in flight"
            if row.start == 0:
                assert row.first_new_block == 0
                self.tables[row.slot] = []
            assert row.first_new_block == len(self.tables[row.slot])
            (new_block_ids,) = row.new_block_ids
            self.tables[row.slot] += new_block_ids
            for block_id in self.tables[row.slot]:
                assert owners.setdefault(block_id, request_id) == request_id, "two rows share a block"
        assert len({row.slot for row in plan.rows}) == len(plan.rows)
        self.in_flight.append((plan, owners))

    def execute(self, errors: dict[int, str] | None = None) -> tuple[StepPlan, StepResult]:
        plan, _ = self.in_flight.popleft()
        token_ids = [token for row in plan.rows if (token := self._run(row)) is not None]
        return plan, StepResult(
            step_id=plan.step_id,
            token_ids=tuple((token_id,) for token_id in token_ids),
            logprobs=(None,) * len(token_ids),
            errors=errors or {},
        )

    def _run(self, row: PlanRow) -> int | None:
        request_id = row.request.request_id
        if row.start == 0:
            self.slots[row.slot] = Slot(request_id)
        slot = self.slots[row.slot]
        assert slot.request_id == request_id, "the slot was given away"
        assert slot.num_computed == row.start, "positions are computed once each, in order"
        (new_block_ids,) = row.new_block_ids
        slot.block_table += new_block_ids
        if row.token_ids:
            assert len(row.token_ids) == row.num_tokens
            token_ids = row.token_ids
        else:
            assert row.num_tokens == 1
            assert slot.last_token is not None, "nothing was sampled in the slot yet"
            token_ids = (slot.last_token,)
        for position, token_id in enumerate(token_ids, row.start):
            self.cache[self._place(slot, position)] = (request_id, position, token_id)
        slot.num_computed += row.num_tokens
        self.num_computed += row.num_tokens
        if not row.is_sampled:
            return None
        slot.last_token = sample(row.request, self._context(slot))
        return slot.last_token

    def _place(self, slot: Slot, position: int) -> tuple[int, int]:
        return slot.block_table[position // self.block_size], position % self.block_size

    def _context(self, slot: Slot) -> list[int]:
        entries = [self.cache[self._place(slot, position)] for position in range(slot.num_computed)]
        for position, entry in enumerate(entries):
            assert entry[:2] == (slot.request_id, position), "another sequence wrote here"
        return [token_id for _, _, token_id in entries]


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
        self.runner = FakeRunner(config.block_size)
        self.outcomes: dict[int, Outcome] = {}

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.outcomes[request.request_id] = Outcome(request)

    def abort(self, request_id: int) -> None:
        is_live = not self.has_ended(request_id)
        assert self.scheduler.abort(request_id) == is_live
        self.outcomes[request_id].is_aborted |= is_live

    def has_ended(self, request_id: int) -> bool:
        return self.outcomes[request_id].last is not None or self.outcomes[request_id].is_aborted

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            assert 0 < plan.num_tokens <= self.config.max_num_batched_tokens
            assert all(not self.outcomes[row.request.request_id].is_aborted for row in plan.rows)
            self.runner.submit(plan)
        return plan

    def commit(self, errors: dict[int, str] | None = None) -> list[TokenOutput]:
        plan, result = self.runner.execute(errors)
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
        if outcome.last.finish_reason is FinishReason.ERROR:
            assert outcome.token_ids == token_ids[: len(outcome.token_ids)]
            return
        assert outcome.token_ids == token_ids
        assert outcome.last.finish_reason is finish_reason
        is_stop = finish_reason is FinishReason.STOP
        assert outcome.last.stop_token_id == (token_ids[-1] if is_stop else None)
