"""Faults at every stage of a step, in every row: only the guilty request may notice."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.args import EngineArgs
from triolet.core.containment import describe_failure, execute_contained
from triolet.core.engine_core import EngineCore, build_core
from triolet.plan import LayerGroup, PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, Request, TokenLogprobs

STAGES = ("build", "forward", "sample", "mask", "commit")
ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: RuntimeError("a fault"),
    lambda: ValueError("a fault"),
    lambda: MemoryError("a fault"),
    lambda: ZeroDivisionError("a fault"),
)
MODULUS = 251


def request(request_id: int, *, prompt: int = 3, max_tokens: int = 4) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple((request_id * 31 + i) % MODULUS for i in range(prompt)),
        max_tokens=max_tokens,
        seed=request_id,
        num_logprobs=0,
    )


@dataclass
class PagedRunner:
    """A runner whose next token is a sum over all tokens that the sequence's blocks hold.

    It works as a real one does: block tables and last tokens by slot, a paged cache that is written row by
    row before anything is read. ``fault(stage, row)`` is called in each stage for each row and may raise,
    when the rows before it have been through the stage.
    """

    layer_groups: tuple[LayerGroup, ...] = (LayerGroup(num_blocks=64),)
    block_size: int = 8
    max_model_len: int = 128
    vocab_size: int = MODULUS
    fault: Callable[[str, PlanRow], None] = lambda stage, row: None
    num_runs: int = 0
    _tables: dict[int, dict[int, int]] = field(default_factory=dict)
    _last_tokens: dict[int, int] = field(default_factory=dict)
    _cache: dict[tuple[int, int], int] = field(default_factory=dict)

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_runs += 1
        inputs: list[tuple[int, ...]] = []
        for row in plan.rows:
            self.fault("build", row)
            table = self._tables.setdefault(row.slot, {})
            (block_ids,) = row.new_block_ids
            table.update(enumerate(block_ids, row.first_new_block))
            inputs.append(row.token_ids or (self._last_tokens[row.slot],))
        for row, known in zip(plan.rows, inputs, strict=True):
            for position, token in enumerate(known, row.start):
                self._cache[self._place(row, position)] = token
            self.fault("forward", row)
        sampled = [row for row in plan.rows if row.is_sampled]
        tokens = [self._sample(row) for row in sampled]
        for row in sampled:
            self.fault("mask", row)
        for row in sampled:
            self.fault("commit", row)
        self._last_tokens.update(zip((row.slot for row in sampled), tokens, strict=True))
        return StepResult(
            step_id=plan.step_id,
            token_ids=tuple((token,) for token in tokens),
            logprobs=tuple((TokenLogprobs((token,), (-token / 7,), 1),) for token in tokens),
            errors={},
        )

    def probe(self) -> None:
        """Works."""

    def release(self) -> None:
        self._cache.clear()

    def restore(self, part: str) -> None:
        """Nothing is missing."""

    def close(self) -> None:
        self._cache.clear()

    def _sample(self, row: PlanRow) -> int:
        self.fault("sample", row)
        return (
            sum(
                (position + 3) * self._cache[self._place(row, position)] + row.request.seed
                for position in range(row.start + row.num_tokens)
            )
            % MODULUS
        )

    def _place(self, row: PlanRow, position: int) -> tuple[int, int]:
        return self._tables[row.slot][position // self.block_size], position % self.block_size


def core_around(runner: PagedRunner, *, max_num_seqs: int = 16) -> EngineCore:
    return build_core(runner, EngineArgs(max_num_seqs=max_num_seqs, max_num_batched_tokens=48))


Outcome = tuple[list[int], list[float], FinishReason | None]


def run(core: EngineCore, requests: list[Request]) -> dict[int, Outcome]:
    """Tokens, log-probabilities and end of each request; two plans under way where there are two."""
    outcomes: dict[int, Outcome] = {one.request_id: ([], [], None) for one in requests}
    for one in requests:
        core.add(one)
    while core.has_unfinished:
        plan = core.schedule()
        assert plan is not None
        following = core.schedule()
        for each in (plan, following) if following is not None else (plan,):
            for output in core.commit(each, core.execute(each)):
                tokens, logprobs, _ = outcomes[output.request_id]
                tokens += output.token_ids
                logprobs += [entry.logprobs[0] for entry in output.logprobs or ()]
                outcomes[output.request_id] = (tokens, logprobs, output.finish_reason)
        core.check_integrity()
    return outcomes


class TestRandomFaults:
    """A thousand runs of six to twelve requests, each with a fault in some stage, row and step."""

    @pytest.mark.parametrize("stage", STAGES)
    def test_only_the_guilty_request_fails(self, stage: str, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("CRITICAL", logger="triolet")
        num_failed = 0
        for seed in range(200):
            chance = random.Random(f"{stage} {seed}")
            requests = [
                request(number, prompt=chance.randint(1, 40), max_tokens=chance.randint(1, 8))
                for number in range(chance.randint(6, 12))
            ]
            expected = run(core_around(PagedRunner()), requests)
            guilty = chance.choice(requests).request_id
            error = chance.choice(ERRORS)
            position = chance.randint(0, 8)

            def fault(
                at: str, row: PlanRow, guilty: int = guilty, error: Callable[[], Exception] = error,
                position: int = position,
            ) -> None:  # fmt: skip
                is_due = row.start + row.num_tokens >= len(row.request.prompt_token_ids) + position
                if at == stage and row.request.request_id == guilty and is_due:
                    raise error()

            core = core_around(PagedRunner(fault=fault))
            found = run(core, requests)
            failed = {number for number, outcome in found.items() if outcome[2] is FinishReason.ERROR}
            assert failed <= {guilty}
            for number in found.keys() - failed:
                assert found[number] == expected[number]
            num_failed += len(failed)
            for number in failed:
                assert found[number][0] == expected[number][0][: len(found[number][0])]
            statistics = core.statistics()
            assert (statistics.num_running, statistics.num_waiting) == (0, 0)
            assert statistics.num_free_blocks == statistics.num_blocks
        assert num_failed > 80, "most requests are long enough to reach their fault"


def plan_of(num_rows: int, *, is_sampled: Callable[[int], bool] = lambda row: True) -> StepPlan:
    rows = tuple(
        PlanRow(
            request=request(row), slot=row, start=0, num_tokens=1, token_ids=(row,), first_new_block=0,
            new_block_ids=((row,),), is_sampled=is_sampled(row),
        )
        for row in range(num_rows)
    )  # fmt: skip
    return StepPlan(step_id=7, rows=rows)


class Counting:
    """Runs plans, failing where a guilty row is in them; the token of a row is its slot."""

    def __init__(self, guilty: set[int]) -> None:
        self.guilty = guilty
        self.num_runs = 0

    def __call__(self, plan: StepPlan) -> StepResult:
        self.num_runs += 1
        if self.guilty & {row.slot for row in plan.rows}:
            raise RuntimeError("guilty")
        sampled = [row.slot for row in plan.rows if row.is_sampled]
        return StepResult(
            step_id=plan.step_id,
            token_ids=tuple((slot,) for slot in sampled),
            logprobs=tuple((TokenLogprobs((slot,), (0.0,), 1),) for slot in sampled),
            errors={index: "odd" for index, row in enumerate(plan.rows) if row.slot % 5 == 4},
            error_params={index: "top_k" for index, row in enumerate(plan.rows) if row.slot % 10 == 9},
            prompt_logprobs={index: () for index, row in enumerate(plan.rows) if row.slot % 3 == 0},
        )


class TestSearch:
    @given(st.integers(1, 64).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
    def test_one_guilty_row_is_found_in_logarithmic_time(self, case: tuple[int, int]) -> None:
        num_rows, guilty = case
        execute = Counting({guilty})
        result, failure = execute_contained(execute, plan_of(num_rows))
        assert set(result.errors) == {guilty} | {row for row in range(num_rows) if row % 5 == 4}
        assert (failure is None) == (num_rows > 1)
        assert execute.num_runs <= 1 + 2 * ceil(log2(num_rows))

    @given(st.sets(st.integers(0, 47), min_size=1, max_size=5), st.sets(st.integers(0, 47)))
    def test_several_are_found_and_everything_else_is_in_its_place(
        self, guilty: set[int], unfinished: set[int]
    ) -> None:
        plan = plan_of(48, is_sampled=lambda row: row not in unfinished)
        result, failure = execute_contained(Counting(guilty), plan)
        assert failure is None
        assert {row for row, text in result.errors.items() if "guilty" in text} == guilty
        sampled = [row for row in range(48) if row not in unfinished]
        assert len(result.token_ids) == len(result.logprobs) == len(sampled)
        for row, token_ids, logprobs in zip(sampled, result.token_ids, result.logprobs, strict=True):
            if row not in guilty:
                assert token_ids == (row,)
                assert logprobs is not None
                assert logprobs[0].token_ids == (row,)
        assert set(result.error_params) == {row for row in range(9, 48, 10) if row not in guilty}
        assert result.prompt_logprobs.keys() == {row for row in range(0, 48, 3) if row not in guilty}

    @pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 64, 256])
    def test_a_dead_device_is_given_up_soon(self, num_rows: int) -> None:
        execute = Counting(set(range(num_rows)))
        result, failure = execute_contained(execute, plan_of(num_rows))
        assert isinstance(failure, RuntimeError)
        assert set(result.errors) == set(range(num_rows))
        assert execute.num_runs <= 2 * log2(num_rows) + 12

    def test_a_batch_that_is_too_large_only_as_a_whole_fails_nobody(self) -> None:
        def execute(plan: StepPlan) -> StepResult:
            if len(plan.rows) > 8:
                raise MemoryError
            return Counting(set())(plan)

        result, failure = execute_contained(execute, plan_of(32))
        assert failure is None
        assert result.token_ids == tuple((row,) for row in range(32))
        assert "guilty" not in str(result.errors)

    def test_a_step_that_succeeds_is_run_once(self) -> None:
        execute = Counting(set())
        execute_contained(execute, plan_of(9))
        assert execute.num_runs == 1

    def test_an_interrupt_is_no_failure(self) -> None:
        def execute(plan: StepPlan) -> StepResult:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute_contained(execute, plan_of(4))

    def test_what_the_step_held_is_let_go(self) -> None:
        class Tensors:
            pass

        references = []

        def execute(plan: StepPlan) -> StepResult:
            tensors = Tensors()
            references.append(weakref.ref(tensors))
            try:
                raise ValueError
            except ValueError as exc:
                raise RuntimeError("guilty") from exc

        _, failure = execute_contained(execute, plan_of(4))
        assert failure is not None
        assert [reference() for reference in references] == [None] * len(references)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("bad row"), "RuntimeError: bad row"),
        (ValueError(), "ValueError"),
        (MemoryError(), "out of memory while computing this request: MemoryError"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "out of memory while computing this request: "
            "RuntimeError: DefaultCPUAllocator: can't allocate memory",
        ),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), "out of memory while computing this request: "
         "OutOfMemoryError: CUDA"),
    ],
)  # fmt: skip
def test_the_error_is_told(error: Exception, text: str) -> None:
    assert describe_failure(error) == text
