from __future__ import annotations

from dataclasses import replace

import pytest

from triolet.plan import PlanRow, StepPlan, StepResult
from triolet.request import FinishReason, Request, RequestOptions, TokenLogprobs, TokenOutput
from triolet.scheduling.outputs import RowResult, split_result, take_in
from triolet.scheduling.sequence import Sequence

STOP = 7
REQUEST = Request(
    request_id=3, prompt_token_ids=(1, 2), max_tokens=4, seed=0, stop_token_ids=frozenset({STOP})
)


def row(start: int, slot: int = 0, is_sampled: bool = True) -> PlanRow:
    return PlanRow(
        request=REQUEST, slot=slot, start=start, num_tokens=1, token_ids=(1,), first_new_block=0,
        new_block_ids=((0,),), is_sampled=is_sampled,
    )  # fmt: skip


def logprobs(token_id: int) -> TokenLogprobs:
    return TokenLogprobs((token_id,), (-1.0,), 1)


@pytest.mark.parametrize(
    ("sampled", "kept", "finish_reason", "stop_token_id"),
    [
        ((5,), (5,), None, None),
        ((5, 6, 5), (5, 6, 5), None, None),
        ((5, STOP, 6), (5, STOP), FinishReason.STOP, STOP),
        ((STOP,), (STOP,), FinishReason.STOP, STOP),
        ((5, 5, 5, 5, 5), (5, 5, 5, 5), FinishReason.LENGTH, None),
        ((5, 5, 5, STOP, 5), (5, 5, 5, STOP), FinishReason.STOP, STOP),
    ],
)
def test_tokens_are_taken_up_to_the_one_that_ends_the_request(
    sampled: tuple[int, ...],
    kept: tuple[int, ...],
    finish_reason: FinishReason | None,
    stop_token_id: int | None,
) -> None:
    sequence = Sequence(REQUEST, max_length=6)
    output = take_in(sequence, row(0), RowResult(token_ids=sampled, logprobs=tuple(map(logprobs, sampled))))
    assert output is not None
    assert (output.request_id, output.token_ids) == (3, kept)
    assert (output.finish_reason, output.stop_token_id) == (finish_reason, stop_token_id)
    assert output.logprobs == tuple(map(logprobs, kept))
    assert sequence.token_ids == [1, 2, *kept]


def test_a_failed_row_ends_its_request_and_gives_no_token() -> None:
    sequence = Sequence(REQUEST, max_length=6)
    output = take_in(sequence, row(0), RowResult(token_ids=(5,), error="broken"))
    assert output is not None
    assert (output.token_ids, output.finish_reason, output.error) == ((), FinishReason.ERROR, "broken")
    assert sequence.token_ids == [1, 2]


def test_a_chunk_that_is_not_the_last_tells_of_nothing_but_prompt_logprobs() -> None:
    sequence = Sequence(REQUEST, max_length=6)
    assert take_in(sequence, row(0), RowResult()) is None
    output = take_in(sequence, row(0), RowResult(prompt_logprobs=(logprobs(2),)))
    assert output is not None
    assert (output.token_ids, output.prompt_logprobs) == ((), (logprobs(2),))


def test_progress_is_told_where_asked_for_and_until_the_first_token() -> None:
    asked = replace(REQUEST, options=RequestOptions(reports_prompt_progress=True))
    sequence = Sequence(asked, max_length=6)
    sequence.num_computed_tokens = 1
    output = take_in(sequence, row(0), RowResult())
    assert output == TokenOutput(request_id=3, num_computed_prompt_tokens=1)
    take_in(sequence, row(0), RowResult(token_ids=(5,)))
    sequence.num_computed_tokens = 0
    assert take_in(sequence, row(0), RowResult()) is None, "it is computed anew"


def test_a_result_is_split_by_rows() -> None:
    plan = StepPlan(step_id=0, rows=(row(0, 0), row(0, 1, is_sampled=False), row(0, 2)))
    result = StepResult(
        step_id=0, token_ids=((4, 5), (6,)), logprobs=(None, (logprobs(6),)), errors={2: "broken"},
        error_params={2: "min_tokens"}, prompt_logprobs={1: (logprobs(2),)},
    )  # fmt: skip
    assert split_result(plan, result) == [
        RowResult(token_ids=(4, 5)),
        RowResult(prompt_logprobs=(logprobs(2),)),
        RowResult(token_ids=(6,), logprobs=(logprobs(6),), error="broken", error_param="min_tokens"),
    ]


def test_a_sample_too_many_is_our_own_mistake() -> None:
    result = StepResult(step_id=0, token_ids=((4,),), logprobs=(None,), errors={})
    with pytest.raises(AssertionError):
        split_result(StepPlan(step_id=0, rows=()), result)


def test_prompt_logprobs_are_told_once_even_if_the_prompt_is_computed_again() -> None:
    sequence = Sequence(REQUEST, max_length=6)
    first, second = logprobs(1), logprobs(2)
    told = []
    for start, computed in [(0, (first,)), (0, (first,)), (0, (first, second)), (1, (second,))]:
        output = take_in(sequence, row(start), RowResult(prompt_logprobs=computed))
        told.append(output.prompt_logprobs if output else None)
    assert told == [(first,), None, (second,), None]
