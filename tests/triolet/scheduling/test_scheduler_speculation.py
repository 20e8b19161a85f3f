"""Guesses in the plan: when there are any, how many, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.triolet.scheduling.fake_runner import Harness, expected_output, make_config, make_request

from triolet.args import Speculation
from triolet.plan import PlanRow
from triolet.request import FinishReason

REPETITIVE = 1
"""Requests with odd ids repeat themselves before long, and then all guesses are right."""


def harness_of(speculation: Speculation = "ngram", depth: int = 1, **changes: Any) -> Harness:
    return Harness(make_config(speculation=speculation, **{"max_model_len": 256, **changes}), depth)


def rows(harness: Harness) -> list[PlanRow]:
    """The rows of the next step, which is carried out."""
    plan = harness.schedule()
    assert plan is not None
    harness.commit()
    return list(plan.rows)


def run_until_it_repeats(harness: Harness) -> PlanRow:
    while True:
        for row in rows(harness):
            if row.num_draft_tokens == harness.config.num_speculative_tokens:
                return row


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("speculation", ["ngram", "suffix", "draft"])
def test_a_text_that_repeats_itself_takes_fewer_steps_for_the_same_tokens(
    speculation: Speculation, depth: int
) -> None:
    harness = harness_of(speculation, depth)
    harness.add(make_request(REPETITIVE, 4, 120))
    num_steps = harness.run()
    statistics = harness.scheduler.statistics()
    assert num_steps < 110
    assert len(harness.outcomes[REPETITIVE].token_ids) == 120
    assert 120 - num_steps <= statistics.num_accepted_tokens <= statistics.num_draft_tokens


def test_a_row_is_the_last_token_and_guesses_at_those_after_it() -> None:
    harness = harness_of()
    harness.add(make_request(REPETITIVE, 4, 100))
    row = run_until_it_repeats(harness)
    assert (row.num_tokens, row.num_draft_tokens, row.is_sampled) == (5, 4, True)
    assert len(row.token_ids) == 5
    assert row.history is None
    harness.run()


def test_a_draft_model_makes_its_own_guesses() -> None:
    harness = harness_of("draft")
    harness.add(make_request(0, 4, 30))
    harness.step()
    (row,) = rows(harness)
    assert (row.num_tokens, row.num_draft_tokens, len(row.token_ids)) == (5, 4, 1)
    harness.run()


def test_nothing_is_guessed_in_the_first_row() -> None:
    harness = harness_of("draft")
    harness.add(make_request(0, 1, 30))
    assert [row.num_draft_tokens for row in rows(harness)] == [0]
    harness.run()


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_no_guess_goes_beyond_the_last_token(max_tokens: int) -> None:
    harness = harness_of("draft")
    harness.add(make_request(0, 4, max_tokens))
    while harness.scheduler.has_unfinished:
        for row in rows(harness):
            assert row.start + row.num_tokens <= 4 + max_tokens - 1
    assert len(harness.outcomes[0].token_ids) == max_tokens


def test_what_comes_after_a_stop_token_is_cut_off() -> None:
    request = make_request(REPETITIVE, 4, 100)
    output, _ = expected_output(request, 256)
    first_seen = {token_id: output.index(token_id) for token_id in output}
    stop = max(first_seen, key=first_seen.__getitem__)
    harness = harness_of("draft")
    harness.add(make_request(REPETITIVE, 4, 100, stop))
    harness.run()
    last = harness.outcomes[REPETITIVE].last
    assert last is not None
    assert (last.finish_reason, last.stop_token_id, last.token_ids[-1]) == (FinishReason.STOP, stop, stop)


def test_guesses_leave_every_decode_its_token() -> None:
    harness = harness_of("draft", max_num_seqs=4, max_num_batched_tokens=6)
    for request_id in range(4):
        harness.add(make_request(request_id, 1, 60))
    for _ in range(30):
        plan = rows(harness)
        assert len(plan) == 4
        assert sum(row.num_tokens for row in plan) <= 6
    harness.run()


def test_guesses_throw_nothing_out() -> None:
    harness = harness_of("draft", num_blocks=8, block_size=4, max_model_len=32)
    for request_id in range(2):
        harness.add(make_request(request_id, 3, 13))
    harness.run()
    assert harness.scheduler.statistics().num_preemptions == 0


def test_guesses_are_made_beside_a_long_prompt_too() -> None:
    harness = harness_of("draft", max_num_batched_tokens=64, max_model_len=2000, num_blocks=1000)
    harness.add(make_request(0, 4, 200))
    for _ in range(3):
        harness.step()
    harness.add(make_request(1, 1000, 1))
    harness.step()
    plan = rows(harness)
    assert plan[0].num_draft_tokens > 0
    assert sum(row.num_tokens for row in plan) == 64
    harness.run()


def test_guesses_fill_up_rows_that_are_computed_together_and_no_more() -> None:
    harness = harness_of("draft", row_group=8, max_num_batched_tokens=64)
    for request_id in range(3):
        harness.add(make_request(request_id, 4, 40))
    for _ in range(10):
        assert sum(row.num_tokens for row in rows(harness) if row.num_draft_tokens) <= 8
    harness.run()


def test_a_failed_row_counts_as_no_guess() -> None:
    harness = harness_of("draft")
    harness.add(make_request(0, 4, 30))
    harness.step()
    harness.schedule()
    harness.commit({0: "broken"})
    assert harness.scheduler.statistics().num_draft_tokens == 0
    harness.run()
