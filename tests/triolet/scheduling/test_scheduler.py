from __future__ import annotations

import pytest
from tests.triolet.scheduling.fake_runner import Harness, expected_output, make_config, make_request, shape

from triolet.errors import InvalidRequestError, OverloadedError, PromptTooLongError
from triolet.plan import PlanRow, StepResult
from triolet.request import FinishReason, LogitsAdjustments, TokenLogprobs
from triolet.scheduling.scheduler import Scheduler

# --- admission -------------------------------------------------------------------------------------------


def test_nothing_to_do_makes_no_plan() -> None:
    scheduler = Scheduler(make_config())
    assert scheduler.schedule() is None
    assert not scheduler.has_unfinished


def test_requests_are_admitted_first_come_first_served_up_to_the_slots() -> None:
    harness = Harness(make_config(max_num_seqs=2))
    for request_id in range(3):
        harness.add(make_request(request_id, 3, 2))
    assert shape(harness.schedule()) == [(0, 0, 3), (1, 0, 3)]
    assert (harness.scheduler.num_running, harness.scheduler.num_waiting) == (2, 1)
    assert harness.run() > 0


def test_the_head_of_the_queue_is_not_overtaken_by_a_smaller_request() -> None:
    harness = Harness(make_config(num_blocks=8, max_model_len=32, max_num_batched_tokens=64))
    harness.add(make_request(0, 16, 4))
    harness.add(make_request(1, 16, 4))  # 4 blocks are free, but the first request may need one more
    harness.add(make_request(2, 1, 1))
    assert shape(harness.schedule()) == [(0, 0, 16)]
    harness.commit()
    harness.run()


def test_a_newcomer_leaves_a_block_for_each_running_sequence() -> None:
    harness = Harness(make_config(num_blocks=9, max_model_len=32, max_num_batched_tokens=64))
    harness.add(make_request(0, 16, 4))
    harness.add(make_request(1, 16, 4))
    assert shape(harness.schedule()) == [(0, 0, 16), (1, 0, 16)]


def test_a_full_queue_refuses() -> None:
    scheduler = Scheduler(make_config(max_num_seqs=1, max_num_queued_requests=2))
    for number in range(3):  # one of them has a slot from the next step on
        scheduler.check_room()
        scheduler.add(make_request(number, 1, 2))
    for _ in range(2):
        with pytest.raises(OverloadedError, match="requests are waiting already, and with 1 more") as caught:
            scheduler.add(make_request(3, 1, 1))
        with pytest.raises(OverloadedError, match="requests are waiting already, and with 1 more"):
            scheduler.check_room()
        assert caught.value.status == 429
        scheduler.schedule()
    scheduler.abort(0)
    scheduler.check_room()
    scheduler.add(make_request(3, 1, 1))


def test_those_that_belong_together_are_taken_in_all_or_none() -> None:
    scheduler = Scheduler(make_config(max_num_seqs=1, max_num_queued_requests=2, max_num_queued_tokens=10))
    scheduler.add(make_request(0, 1, 1))
    for refused in (
        [make_request(number, 1, 1) for number in (1, 2, 3)],
        [make_request(number, 5, 1) for number in (1, 2)],
        [make_request(1, 1, 1), make_request(2, 9000, 1)],
    ):
        with pytest.raises((OverloadedError, PromptTooLongError)):
            scheduler.add(*refused)
    assert scheduler.num_waiting == 1
    scheduler.add(make_request(1, 1, 1), make_request(2, 1, 1))
    assert scheduler.num_waiting == 3


def test_so_does_one_whose_prompts_are_too_long_together() -> None:
    scheduler = Scheduler(make_config(max_num_queued_tokens=10))
    scheduler.add(make_request(0, 12, 1))
    with pytest.raises(OverloadedError, match=r"12 tokens; with the 3 of this one.*--max-num-queued-tokens"):
        scheduler.add(make_request(1, 3, 1))
    scheduler.schedule()
    scheduler.add(make_request(1, 3, 1))
    scheduler.add(make_request(2, 7, 1))
    with pytest.raises(OverloadedError):
        scheduler.add(make_request(3, 1, 1))
    scheduler.abort(2)
    scheduler.add(make_request(3, 7, 1))


def test_a_prompt_that_leaves_no_room_in_the_context_is_refused() -> None:
    scheduler = Scheduler(make_config(max_model_len=20))
    for num_prompt_tokens in (20, 21):
        with pytest.raises(PromptTooLongError, match=f"has {num_prompt_tokens} tokens.* 20 tokens") as caught:
            scheduler.add(make_request(0, num_prompt_tokens, 1))
        assert caught.value.param == "prompt"
    scheduler.add(make_request(0, 19, 1))


def test_a_request_that_can_never_fit_in_the_blocks_is_refused() -> None:
    scheduler = Scheduler(make_config(num_blocks=4, block_size=4))
    scheduler.add(make_request(0, 10, 7))  # 17 tokens, the last of which needs no place
    with pytest.raises(PromptTooLongError, match="need 5 KV blocks, there are 4"):
        scheduler.add(make_request(1, 10, 8))


def test_the_context_caps_what_a_request_may_need() -> None:
    scheduler = Scheduler(make_config(num_blocks=4, block_size=4, max_model_len=16))
    scheduler.add(make_request(0, 10, 1_000_000))


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "param"), [(0, 1, "prompt"), (1, 0, "max_tokens")]
)
def test_an_empty_request_is_refused(num_prompt_tokens: int, max_tokens: int, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Scheduler(make_config()).add(make_request(0, num_prompt_tokens, max_tokens))
    assert caught.value.param == param


# --- the budget ------------------------------------------------------------------------------------------


def test_a_long_prompt_is_computed_in_chunks() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    harness.add(make_request(0, 20, 2))
    plans = []
    for _ in range(4):
        plans.append(harness.schedule())
        harness.commit()
    assert [shape(plan) for plan in plans] == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 4)], [(0, 20, 1)]]
    assert [plan.rows[0].is_sampled for plan in plans if plan] == [False, False, True, True]


def test_blocks_come_with_the_chunk_that_fills_them_and_are_promised_before() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8, num_blocks=6, max_model_len=24))
    harness.add(make_request(0, 20, 2))
    harness.add(make_request(1, 8, 2))
    rows: list[PlanRow] = []
    for _ in range(3):
        plan = harness.schedule()
        assert plan is not None
        rows += plan.rows
        harness.commit()
    assert [(row.first_new_block, len(row.new_block_ids[0])) for row in rows] == [(0, 2), (2, 2), (4, 1)]
    harness.run()


def test_decodes_come_first_and_short_prompts_before_the_rest_of_long_ones() -> None:
    harness = Harness(make_config(max_num_batched_tokens=8))
    harness.add(make_request(0, 12, 4))
    harness.step()
    harness.add(make_request(1, 2, 4))
    assert shape(harness.schedule()) == [(1, 0, 2), (0, 8, 4)]
    harness.commit()
    harness.add(make_request(2, 12, 4))
    harness.add(make_request(3, 2, 4))
    assert shape(harness.schedule()) == [(0, 12, 1), (1, 2, 1), (2, 0, 6)]
    harness.commit()
    assert shape(harness.schedule()) == [(0, 13, 1), (1, 3, 1), (3, 0, 2), (2, 6, 4)]
    harness.commit()
    harness.run()


def test_a_prefill_goes_on_beside_full_decodes() -> None:
    harness = Harness(make_config(max_num_seqs=3, max_num_batched_tokens=3))
    for request_id, num_prompt_tokens in enumerate((1, 1, 9)):
        harness.add(make_request(request_id, num_prompt_tokens, 30))
    for start in range(9):
        assert (2, start, 1) in shape(harness.schedule())
        harness.commit()


# --- ending ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_max_tokens_ends_a_request(depth: int) -> None:
    harness = Harness(make_config(), depth)
    harness.add(make_request(0, 5, 3))
    harness.run()
    assert len(harness.outcomes[0].token_ids) == 3
    assert harness.runner.num_computed == 5 + 2, "the last token is never computed"


@pytest.mark.parametrize("depth", [1, 2])
def test_the_context_ends_a_request(depth: int) -> None:
    harness = Harness(make_config(max_model_len=9), depth)
    harness.add(make_request(0, 5, 100))
    harness.run()
    assert len(harness.outcomes[0].token_ids) == 4
    assert harness.runner.num_computed == 8


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_token_ends_a_request_and_is_in_its_output(depth: int) -> None:
    tokens, _ = expected_output(make_request(0, 5, 8), 64)
    harness = Harness(make_config(), depth)
    harness.add(make_request(0, 5, 8, tokens[4]))
    harness.run()
    last = harness.outcomes[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.STOP
    assert last.stop_token_id == last.token_ids[-1] == tokens[4]


def test_a_stop_token_at_the_limit_is_a_stop() -> None:
    tokens, _ = expected_output(make_request(0, 5, 1), 64)
    harness = Harness(make_config())
    harness.add(make_request(0, 5, 1, tokens[0]))
    harness.run()
    last = harness.outcomes[0].last
    assert last is not None
    assert last.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("num_prompt_tokens", [5, 20])
def test_an_error_ends_its_request_alone(num_prompt_tokens: int) -> None:
    harness = Harness(make_config())
    harness.add(make_request(0, num_prompt_tokens, 4))
    harness.add(make_request(1, 5, 4))
    harness.schedule()
    outputs = harness.commit({0: "out of range"})
    assert outputs[0].finish_reason is FinishReason.ERROR
    assert outputs[0].error == "out of range"
    assert outputs[0].token_ids == ()
    assert not harness.scheduler.is_holding(0)
    harness.run()
    assert len(harness.outcomes[1].token_ids) == 4


@pytest.mark.parametrize("logprobs", [None, TokenLogprobs((4, 9), (-0.7, -0.7), 1)])
def test_logprobs_are_passed_on(logprobs: TokenLogprobs | None) -> None:
    scheduler = Scheduler(make_config())
    scheduler.add(make_request(0, 1, 1))
    plan = scheduler.schedule()
    assert plan is not None
    given = None if logprobs is None else (logprobs,)
    (output,) = scheduler.commit(plan, StepResult(step_id=0, token_ids=((4,),), logprobs=(given,), errors={}))
    assert output.logprobs == given


# --- pipelining ------------------------------------------------------------------------------------------


def test_a_second_plan_decodes_tokens_that_are_not_known_yet() -> None:
    harness = Harness(make_config(), depth=2)
    harness.add(make_request(0, 5, 4))
    harness.schedule()
    second = harness.schedule()
    assert second is not None
    assert shape(second) == [(0, 5, 1)]
    assert second.rows[0].token_ids == ()
    harness.commit()
    harness.commit()
    third = harness.schedule()
    assert third is not None
    assert third.rows[0].token_ids == (harness.outcomes[0].token_ids[-1],)


def test_what_the_host_chooses_waits_for_its_token_while_others_go_on() -> None:
    harness = Harness(make_config(), depth=2)
    harness.add(make_request(0, 5, 4, adjustments=LogitsAdjustments(grammar="a")))
    harness.add(make_request(1, 3, 4))
    assert shape(harness.schedule()) == [(0, 0, 5), (1, 0, 3)]
    assert shape(harness.schedule()) == [(1, 3, 1)]
    harness.commit()
    assert shape(harness.schedule()) == [(0, 5, 1), (1, 4, 1)]
    harness.run()


def test_no_more_than_two_plans_are_in_flight() -> None:
    scheduler = Scheduler(make_config())
    scheduler.add(make_request(0, 5, 9))
    scheduler.schedule()
    scheduler.schedule()
    with pytest.raises(AssertionError):
        scheduler.schedule()


def test_plans_are_committed_in_order() -> None:
    harness = Harness(make_config(), depth=2)
    harness.add(make_request(0, 5, 9))
    harness.schedule()
    second = harness.schedule()
    assert second is not None
    result = StepResult(step_id=second.step_id, token_ids=((1,),), logprobs=(None,), errors={})
    with pytest.raises(AssertionError, match="in the order"):
        harness.scheduler.commit(second, result)


def test_a_row_of_an_ended_sequence_is_discarded_and_frees_what_it_used() -> None:
    tokens, _ = expected_output(make_request(0, 5, 8), 64)
    harness = Harness(make_config(max_num_seqs=1), depth=2)
    harness.add(make_request(0, 5, 8, tokens[0]))
    harness.add(make_request(1, 5, 2))
    harness.schedule()
    harness.schedule()
    assert harness.commit()[0].finish_reason is FinishReason.STOP
    assert harness.scheduler.is_holding(0)
    assert harness.scheduler.num_running == 0
    assert harness.schedule() is None, "the only slot is still in flight"
    assert harness.commit() == []
    assert not harness.scheduler.is_holding(0)
    assert shape(harness.schedule()) == [(1, 0, 5)]
    harness.commit()
    harness.run()


# --- aborting --------------------------------------------------------------------------------------------


def test_aborting_a_waiting_request_drops_it() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    for request_id in range(3):
        harness.add(make_request(request_id, 5, 2))
    harness.step()
    harness.abort(1)
    assert harness.scheduler.num_waiting == 1
    harness.run()
    assert harness.outcomes[1].token_ids == []


@pytest.mark.parametrize("num_prompt_tokens", [5, 40])
def test_aborting_between_steps_frees_at_once(num_prompt_tokens: int) -> None:
    harness = Harness(make_config())
    harness.add(make_request(0, num_prompt_tokens, 9))
    harness.step()
    harness.abort(0)
    assert not harness.scheduler.has_unfinished
    assert harness.scheduler.statistics().num_free_blocks == 64


def test_aborting_in_flight_frees_when_the_last_plan_with_it_is_committed() -> None:
    harness = Harness(make_config(), depth=2)
    harness.add(make_request(0, 5, 9))
    harness.schedule()
    harness.schedule()
    harness.abort(0)
    assert harness.scheduler.num_running == 0
    assert harness.commit() == []
    assert harness.scheduler.is_holding(0)
    assert harness.commit() == []
    assert not harness.scheduler.has_unfinished


def test_what_is_not_there_cannot_be_aborted() -> None:
    harness = Harness(make_config())
    assert not harness.scheduler.abort(7)
    harness.add(make_request(0, 5, 1))
    harness.schedule()
    harness.abort(0)
    harness.abort(0)
    harness.commit()
    harness.abort(0)


# --- statistics ------------------------------------------------------------------------------------------


def test_the_statistics_are_the_live_state() -> None:
    harness = Harness(make_config(max_num_seqs=1))
    harness.add(make_request(0, 6, 2))
    harness.add(make_request(1, 6, 2))
    harness.schedule()
    statistics = harness.scheduler.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (1, 1)
    assert (statistics.num_blocks, statistics.num_free_blocks) == (64, 62)
    assert statistics.num_preemptions == 0
