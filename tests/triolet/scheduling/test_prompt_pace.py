from __future__ import annotations

import pytest

from triolet.plan import PlanRow, StepPlan
from triolet.request import Request
from triolet.scheduling.prompt_pace import MAX_SLOWDOWN, PromptPace

REQUEST = Request(request_id=0, prompt_token_ids=(1,), max_tokens=9, seed=0)


def plan(*rows: tuple[int, int, int]) -> StepPlan:
    """(start, tokens, guesses among them) of each row."""
    return StepPlan(
        step_id=0,
        rows=tuple(
            PlanRow(
                request=REQUEST, slot=slot, start=start, num_tokens=num_tokens, token_ids=(1,) * num_tokens,
                first_new_block=0, new_block_ids=((),), is_sampled=True, num_draft_tokens=num_draft_tokens,
            )
            for slot, (start, num_tokens, num_draft_tokens) in enumerate(rows)
        ),
    )  # fmt: skip


def test_nothing_is_known_at_first() -> None:
    pace = PromptPace()
    assert pace.allowance is None
    assert pace.token_seconds(100) == 0.0


def test_the_allowance_is_a_multiple_of_a_step_without_prompts() -> None:
    pace = PromptPace()
    pace.observe(plan((50, 1, 0), (60, 5, 4)), 0.01)
    assert pace.allowance == pytest.approx((MAX_SLOWDOWN - 1) * 0.01)


def test_a_token_costs_what_a_step_takes_longer_with_it() -> None:
    pace = PromptPace()
    pace.observe(plan((50, 1, 0)), 0.01)
    pace.observe(plan((50, 1, 0), (0, 100, 0)), 0.03)
    assert pace.token_seconds(0) == pytest.approx(0.0002)
    pace.observe(plan((0, 100, 0), (200, 100, 0)), 0.04)
    assert pace.token_seconds(0) == pytest.approx(0.0002)


def test_a_token_costs_more_further_into_its_sequence() -> None:
    pace = PromptPace()
    for start in (0, 1024, 4096):
        pace.observe(plan((start, 100, 0)), 0.01 + start * 1e-5)
    assert pace.token_seconds(0) == pytest.approx(1e-4)
    assert pace.token_seconds(1500) < pace.token_seconds(5000)
    assert pace.token_seconds(3000) == pace.token_seconds(1030), "from before, where there is nothing nearer"


def test_it_follows_what_changes() -> None:
    pace = PromptPace()
    for _ in range(30):
        pace.observe(plan((50, 1, 0)), 0.01)
    for _ in range(30):
        pace.observe(plan((50, 1, 0)), 0.02)
    assert pace.allowance == pytest.approx((MAX_SLOWDOWN - 1) * 0.02, rel=0.01)


def test_a_step_that_was_quicker_than_without_prompts_costs_nothing() -> None:
    pace = PromptPace()
    pace.observe(plan((50, 1, 0)), 0.05)
    pace.observe(plan((50, 1, 0), (0, 100, 0)), 0.03)
    assert pace.token_seconds(0) == 0.0
