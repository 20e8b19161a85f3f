"""What is computed already is not computed again: within a step, across requests, after preemption."""

from __future__ import annotations

import pytest
from tests.triolet.scheduling.fake_runner import Harness, expected_output, make_config, make_request, shape

from triolet.request import RequestOptions


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", [(None,), (None, 6), (6,)])
def test_a_prompt_seen_before_is_computed_from_its_last_block_on(
    depth: int, windows: tuple[int | None, ...]
) -> None:
    harness = Harness(make_config(windows=windows), depth)
    harness.add(make_request(0, 12, 3, family=0))
    harness.run()
    harness.add(make_request(1, 12, 3, family=0))
    assert shape(harness.schedule()) == [(1, 8, 4)]
    outputs = harness.commit()
    assert [output.num_cached_tokens for output in outputs] == [8]
    harness.run()
    statistics = harness.scheduler.statistics()
    assert (statistics.num_prefix_queries, statistics.num_prefix_hits) == (24, 8)


def test_the_first_row_after_a_hit_has_the_whole_table_and_all_tokens() -> None:
    harness = Harness(make_config())
    harness.add(make_request(0, 12, 3, family=0))
    harness.run()
    request = make_request(1, 15, 3, family=0)
    harness.add(request)
    plan = harness.schedule()
    assert plan is not None
    (row,) = plan.rows
    assert (row.start, row.num_tokens, row.first_new_block, len(row.new_block_ids[0])) == (12, 3, 0, 4)
    assert row.history == request.prompt_token_ids
    harness.commit()
    harness.run()


def test_what_was_generated_is_found_by_the_next_turn() -> None:
    first = make_request(0, 6, 7, family=0)
    output, _ = expected_output(first, 64)
    harness = Harness(make_config())
    harness.add(first)
    harness.run()
    second = make_request(1, 0, 3)
    second = type(second)(
        request_id=1,
        prompt_token_ids=(*first.prompt_token_ids, *output, 1, 2, 3),
        max_tokens=3,
        seed=5,
    )
    harness.add(second)
    assert shape(harness.schedule()) == [(1, 12, 4)], "of 13 tokens, the last was never computed"
    harness.commit()
    harness.run()


def test_requests_that_come_together_compute_what_they_share_once() -> None:
    harness = Harness(make_config(max_num_batched_tokens=16))
    for request_id in range(4):
        harness.add(make_request(request_id, 10, 3, family=0))
    assert shape(harness.schedule()) == [(0, 0, 10)]
    harness.commit()
    assert shape(harness.schedule()) == [(0, 10, 1), (1, 8, 2), (2, 8, 2), (3, 8, 2)]
    harness.commit()
    harness.run()
    assert harness.runner.num_computed == 10 + 3 * 2 + 4 * 2


def test_one_that_is_held_back_is_overtaken_but_keeps_its_slot() -> None:
    harness = Harness(make_config(max_num_seqs=3, max_num_batched_tokens=12))
    harness.add(make_request(0, 9, 3, family=0))
    harness.add(make_request(1, 9, 3, family=0))
    harness.add(make_request(2, 2, 3, family=1))
    harness.add(make_request(3, 1, 3, family=2))
    assert shape(harness.schedule()) == [(0, 0, 9), (2, 0, 2)]
    harness.commit()
    assert shape(harness.schedule()) == [(0, 9, 1), (2, 2, 1), (1, 8, 1)]
    harness.commit()
    harness.run()


def test_one_that_is_held_back_follows_a_long_prefill_block_by_block() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    harness.add(make_request(0, 20, 3, family=0))
    harness.add(make_request(1, 12, 3, family=0))
    assert shape(harness.schedule()) == [(0, 0, 8)]
    harness.commit()
    assert shape(harness.schedule()) == [(0, 8, 8)], "its third block is full at 12, but it needs a token"
    harness.commit()
    harness.run()
    assert harness.runner.num_computed == 20 + 4 + 2 * 2


@pytest.mark.parametrize("is_failing", [False, True])
def test_one_that_is_held_back_goes_on_when_the_one_before_it_leaves(is_failing: bool) -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    harness.add(make_request(0, 20, 3, family=0))
    harness.add(make_request(1, 20, 3, family=0))
    harness.schedule()
    if is_failing:
        harness.commit({0: "broken"})
    else:
        harness.abort(0)
        harness.commit()
    assert shape(harness.schedule()) == [(1, 0, 8)]
    harness.commit()
    harness.run()


def test_what_a_failed_request_computed_is_not_used() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    harness.add(make_request(0, 20, 3, family=0))
    harness.step()
    harness.schedule()
    harness.commit({0: "broken"})
    harness.add(make_request(1, 20, 3, family=0))
    assert shape(harness.schedule()) == [(1, 0, 8)]
    harness.commit()
    harness.run()


def test_a_preempted_sequence_finds_what_is_left_of_what_it_had_computed() -> None:
    harness = Harness(make_config(num_blocks=7, max_model_len=32))
    for request_id in range(3):
        harness.add(make_request(request_id, 4, 6))
    rows = []
    while (plan := harness.schedule()) is not None:
        rows += [row for row in plan.rows if row.request.request_id == 2 and row.history is not None]
        harness.commit()
    assert harness.scheduler.statistics().num_preemptions == 1
    assert [row.start for row in rows] == [0, 4], "its second block was taken, its first was not"


def test_only_the_first_admission_counts() -> None:
    harness = Harness(make_config(num_blocks=8, max_model_len=32))
    for request_id in range(3):
        harness.add(make_request(request_id, 4, 10))
    harness.run()
    statistics = harness.scheduler.statistics()
    assert statistics.num_preemptions > 0
    assert (statistics.num_prefix_queries, statistics.num_prefix_hits) == (12, 0)


@pytest.mark.parametrize("salts", [("", "x"), ("x", ""), ("x", "y")])
def test_other_salts_share_nothing(salts: tuple[str, str]) -> None:
    harness = Harness(make_config())
    for request_id, salt in enumerate(salts):
        options = RequestOptions(cache_salt=salt)
        harness.add(make_request(request_id, 12, 3, family=0, options=options))
        assert shape(harness.schedule()) == [(request_id, 0, 12)]
        harness.commit()
        harness.run()


def test_where_all_logits_are_wanted_everything_is_computed() -> None:
    harness = Harness(make_config())
    for request_id in range(2):
        harness.add(make_request(request_id, 12, 3, family=0, num_prompt_logprobs=1))
    assert shape(harness.schedule()) == [(0, 0, 12), (1, 0, 4)]
    harness.commit()
    harness.run()
    assert harness.scheduler.statistics().num_prefix_queries == 0


def test_without_prefix_caching_everything_is_computed() -> None:
    harness = Harness(make_config(enable_prefix_caching=False))
    for request_id in range(2):
        harness.add(make_request(request_id, 8, 3, family=0))
    assert shape(harness.schedule()) == [(0, 0, 8), (1, 0, 8)]
    harness.commit()
    harness.run()
    assert harness.scheduler.statistics().num_prefix_queries == 0


# --- reset -----------------------------------------------------------------------------------------------


def test_after_a_reset_nothing_is_found() -> None:
    harness = Harness(make_config())
    harness.add(make_request(0, 12, 3, family=0))
    harness.run()
    assert harness.scheduler.reset_prefix_cache()
    harness.add(make_request(1, 12, 3, family=0))
    assert shape(harness.schedule()) == [(1, 0, 12)]
    harness.commit()
    harness.run()


def test_a_reset_is_refused_while_blocks_are_in_use() -> None:
    harness = Harness(make_config(), depth=2)
    harness.add(make_request(0, 12, 3))
    harness.schedule()
    assert not harness.scheduler.reset_prefix_cache()
    harness.abort(0)
    assert not harness.scheduler.reset_prefix_cache(), "its blocks are in flight"
    harness.commit()
    assert harness.scheduler.reset_prefix_cache()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_reset_that_preempts_has_everything_computed_anew(depth: int) -> None:
    harness = Harness(make_config(), depth)
    harness.add(make_request(0, 12, 6, family=0))
    harness.step()
    assert harness.scheduler.reset_prefix_cache(preempt_running=True)
    while harness.runner.in_flight:
        harness.commit()
    assert shape(harness.schedule())[0][:2] == (0, 0)
    harness.commit()
    harness.run()


# --- windows ---------------------------------------------------------------------------------------------


def test_a_window_group_holds_no_more_than_the_window_and_the_tokens_in_flight() -> None:
    harness = Harness(make_config(windows=(5,), num_blocks=8, max_num_batched_tokens=8))
    harness.add(make_request(0, 40, 24))
    num_used = 0
    while harness.scheduler.has_unfinished:
        harness.schedule()
        statistics = harness.scheduler.statistics()
        harness.commit()
        num_used = max(num_used, statistics.num_blocks - statistics.num_free_blocks)
    assert num_used == 3, "8 positions in flight and the 4 before them"


def test_a_window_that_moves_off_a_shared_block_still_finds_a_block_of_its_own() -> None:
    harness = Harness(make_config(windows=(4,), num_blocks=9, max_num_batched_tokens=4, block_size=4))
    for request_id in range(4):
        harness.add(make_request(request_id, 10, 20, family=0))
    harness.run()


def test_a_request_that_a_window_group_can_never_hold_is_refused_by_need_not_by_length() -> None:
    harness = Harness(make_config(windows=(5,), num_blocks=6, max_num_batched_tokens=8))
    harness.add(make_request(0, 40, 20))
    harness.run()
