from __future__ import annotations

import pytest
from tests.triolet.scheduling.fake_runner import Harness, make_config, make_request, shape


def crowded(depth: int = 1, *, num_blocks: int = 8) -> Harness:
    """Three requests that all fit at first, in a pool that has room for two of them in the end."""
    harness = Harness(make_config(max_model_len=32, num_blocks=num_blocks), depth)
    for request_id in range(3):
        harness.add(make_request(request_id, 4, 10))
    return harness


def run_until_preempted(harness: Harness) -> None:
    while harness.scheduler.statistics().num_preemptions == 0:
        harness.step()


def test_the_last_admitted_is_thrown_out_and_goes_to_the_front_of_the_queue() -> None:
    harness = crowded()
    harness.add(make_request(3, 4, 10))
    run_until_preempted(harness)
    known = len(harness.outcomes[2].token_ids)
    assert known > 0
    assert not harness.scheduler.is_holding(2)
    assert harness.scheduler.num_waiting == 2
    while not harness.scheduler.is_holding(2):
        plan = harness.schedule()
        harness.commit()
    row = next(row for row in plan.rows if row.request.request_id == 2) if plan else None
    assert row is not None
    assert (row.start, row.first_new_block) == (0, 0)
    assert row.token_ids == (*row.request.prompt_token_ids, *harness.outcomes[2].token_ids[:known])
    assert len(row.new_block_ids[0]) == -(-(4 + known) // 4)
    harness.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_changes_no_output(depth: int) -> None:
    harness = crowded(depth)
    harness.run()
    assert harness.scheduler.statistics().num_preemptions > 0
    assert all(len(outcome.token_ids) == 10 for outcome in harness.outcomes.values())


def test_a_token_in_flight_of_a_preempted_sequence_is_kept() -> None:
    harness = crowded(depth=2)
    while harness.scheduler.statistics().num_preemptions == 0:
        if len(harness.runner.in_flight) == 2:
            harness.commit()
        harness.schedule()
    known = len(harness.outcomes[2].token_ids)
    assert harness.scheduler.is_holding(2), "its row is in flight"
    assert harness.scheduler.num_waiting == 0
    harness.commit()
    assert len(harness.outcomes[2].token_ids) == known + 1
    assert not harness.scheduler.is_holding(2)
    assert harness.scheduler.num_waiting == 1
    harness.run()


def test_a_preempted_sequence_can_be_aborted_in_flight() -> None:
    harness = crowded(depth=2)
    while harness.scheduler.statistics().num_preemptions == 0:
        if len(harness.runner.in_flight) == 2:
            harness.commit()
        harness.schedule()
    harness.abort(2)
    harness.abort(2)
    harness.run()


def test_nothing_is_thrown_out_while_blocks_are_about_to_come_back() -> None:
    harness = crowded(depth=2, num_blocks=6)
    for _ in range(4):
        harness.step()  # afterwards position 7 is in flight, all blocks are full and taken
    harness.abort(2)
    assert harness.schedule() is None
    assert harness.scheduler.statistics().num_preemptions == 0
    harness.commit()
    assert shape(harness.schedule()) == [(0, 8, 1), (1, 8, 1)]
    harness.commit()
    harness.run()


def test_a_newcomer_throws_nothing_out() -> None:
    harness = Harness(make_config(num_blocks=4, max_model_len=16))
    harness.add(make_request(0, 8, 8))
    harness.step()
    harness.add(make_request(1, 12, 2))
    harness.run()
    assert harness.scheduler.statistics().num_preemptions == 0


def test_the_oldest_request_is_never_thrown_out() -> None:
    harness = crowded()
    num_steps = 0
    while harness.outcomes[0].last is None:
        harness.step()
        num_steps += 1
    assert num_steps == 10, "one step for each of its tokens"
    harness.run()


def test_a_request_as_large_as_the_pool_runs_alone() -> None:
    harness = Harness(make_config(num_blocks=4, max_model_len=17), depth=2)
    for request_id in range(3):
        harness.add(make_request(request_id, 9, 8))
    harness.run()
    assert all(len(outcome.token_ids) == 8 for outcome in harness.outcomes.values())
