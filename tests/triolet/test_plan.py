from __future__ import annotations

import dataclasses

import pytest

from triolet import plan as plan_module
from triolet.plan import PlanRow, StepPlan, num_blocks_needed
from triolet.request import Request

REQUEST = Request(request_id=0, prompt_token_ids=(1, 2, 3), max_tokens=1, seed=0)


def row(num_tokens: int) -> PlanRow:
    return PlanRow(
        request=REQUEST,
        slot=0,
        start=0,
        num_tokens=num_tokens,
        token_ids=(1,) * num_tokens,
        first_new_block=0,
        new_block_ids=((0,),),
        is_sampled=True,
    )


@pytest.mark.parametrize(("sizes", "total"), [((), 0), ((3,), 3), ((3, 1, 7), 11)])
def test_a_plan_has_the_tokens_of_its_rows(sizes: tuple[int, ...], total: int) -> None:
    assert StepPlan(step_id=0, rows=tuple(map(row, sizes))).num_tokens == total


def test_plans_are_immutable() -> None:
    plan = StepPlan(step_id=0, rows=())
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.step_id = 1  # type: ignore[misc]


def test_plans_are_made_of_plain_numbers() -> None:
    assert "torch" not in vars(plan_module)


@pytest.mark.parametrize(
    ("num_tokens", "window", "num_blocks"),
    [(8, None, 2), (9, None, 3), (1, 7, 1), (16, 7, 4), (400, 7, 5), (400, 6, 4), (400, 2, 3)],
)
def test_a_window_bounds_the_blocks_that_a_sequence_needs(
    num_tokens: int, window: int | None, num_blocks: int
) -> None:
    """With 4 tokens a step, 8 in flight: those and the window before them may start late in a block."""
    needed = num_blocks_needed(num_tokens, block_size=4, window=window, max_num_batched_tokens=4)
    assert needed == num_blocks
