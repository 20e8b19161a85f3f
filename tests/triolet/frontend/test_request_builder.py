from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes import EOS_ID
from tests.triolet.frontend.parts import input_processor, new_request

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.frontend.input_processor import InputProcessor
from triolet.frontend.request_builder import Origin, num_items
from triolet.request import RequestOptions
from triolet.sampling_params import BeamSearchParams, SamplingParams


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model, max_model_len=64)


class TestLimits:
    @pytest.mark.parametrize(
        ("num_prompt", "max_tokens", "room"), [(60, 4, 4), (60, None, 4), (63, None, 1), (1, 9, 9)]
    )
    def test_what_fits(
        self, inputs: InputProcessor, num_prompt: int, max_tokens: int | None, room: int
    ) -> None:
        state = new_request(inputs, (1,) * num_prompt, max_tokens=max_tokens)
        assert state.requests[0].max_tokens == room

    @pytest.mark.parametrize(
        ("num_prompt", "max_tokens", "param"),
        [(64, None, "prompt"), (65, 1, "prompt"), (60, 5, "max_tokens")],
    )
    def test_what_does_not(
        self, inputs: InputProcessor, num_prompt: int, max_tokens: int | None, param: str
    ) -> None:
        with pytest.raises(PromptTooLongError) as caught:
            new_request(inputs, (1,) * num_prompt, max_tokens=max_tokens)
        assert caught.value.param == param

    def test_stop_token_ids_must_be_in_the_vocabulary(self, inputs: InputProcessor) -> None:
        with pytest.raises(InvalidRequestError, match="stop_token_ids: 258") as caught:
            new_request(inputs, (1,), stop_token_ids=(1, 258))
        assert caught.value.param == "stop_token_ids"

    def test_stops_too_long_for_anyone_are_blamed_on_stop(self, inputs: InputProcessor) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            new_request(inputs, (1,), stop=("x" * 20_000,))
        assert caught.value.param == "stop"


class TestRequests:
    def test_everything_is_handed_on(self, inputs: InputProcessor) -> None:
        request = new_request(
            inputs,
            (1, 2),
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            seed=11,
            logprobs=3,
            stop_token_ids=(4,),
        ).requests[0]
        assert (request.temperature, request.top_p, request.top_k, request.min_p) == (0.5, 0.9, 7, 0.1)
        assert (request.prompt_token_ids, request.seed, request.num_logprobs) == ((1, 2), 11, 3)
        assert request.stop_token_ids == {4, EOS_ID}

    def test_the_end_of_sequence_may_be_ignored(self, inputs: InputProcessor) -> None:
        assert new_request(inputs, (1,), ignore_eos=True).requests[0].stop_token_ids == frozenset()

    def test_internal_ids_differ_though_callers_use_the_same_name(self, inputs: InputProcessor) -> None:
        states = [new_request(inputs, (1,), origin=Origin(request_id="mine")) for _ in range(3)]
        assert {state.head.request_id for state in states} == {"mine"}
        assert len({state.requests[0].request_id for state in states}) == 3

    def test_a_request_without_a_name_gets_one(self, inputs: InputProcessor) -> None:
        names = [new_request(inputs, (1,)).head.request_id for _ in range(2)]
        assert len(set(names)) == 2


class TestSeveral:
    def test_children_differ_in_id_and_seed_alone(self, inputs: InputProcessor) -> None:
        state = new_request(inputs, (1, 2), n=3, seed=7, logprobs=2)
        first, second, third = state.requests
        assert [request.seed for request in state.requests] == [7, 8, 9]
        assert replace(second, request_id=first.request_id, seed=7) == first
        assert len({request.request_id for request in (first, second, third)}) == 3
        assert state.head.seed == 7

    def test_the_prompts_logprobs_are_asked_for_once(self, inputs: InputProcessor) -> None:
        state = new_request(inputs, (1, 2), n=2, prompt_logprobs=4)
        assert [request.num_prompt_logprobs for request in state.requests] == [4, None]

    def test_more_than_the_queue_can_ever_hold_are_refused(self, byte_model: Path) -> None:
        inputs = input_processor(byte_model, max_num_queued_requests=3)
        new_request(inputs, (1,), n=3)
        with pytest.raises(InvalidRequestError, match=r"n: 4 .*--max-num-queued-requests") as caught:
            new_request(inputs, (1,), n=4)
        assert caught.value.param == "n"


class TestAdjustments:
    def test_there_are_none_where_nothing_is_asked_for(self, inputs: InputProcessor) -> None:
        assert new_request(inputs, (1,)).requests[0].adjustments is None

    def test_min_tokens_forbid_what_ends_the_output(self, inputs: InputProcessor) -> None:
        (request,) = new_request(inputs, (1,), min_tokens=2, stop_token_ids=(5,)).requests
        assert request.adjustments is not None
        assert (request.adjustments.min_tokens, request.adjustments.end_token_ids) == (2, {5, EOS_ID})

    def test_min_tokens_must_fit(self, inputs: InputProcessor) -> None:
        with pytest.raises(PromptTooLongError, match="lower min_tokens to 4") as caught:
            new_request(inputs, (1,) * 60, min_tokens=5, max_tokens=None)
        assert caught.value.param == "min_tokens"

    @pytest.mark.parametrize(
        ("length", "phrase"),
        [
            (64, r"prompt is too long[^0-9]*64\s*tokens?\s*>\s*63"),
            (60, r"input length and `max_tokens` exceed context limit: 60 \+ 5 > 64"),
        ],
    )
    def test_the_sizes_are_said_as_agents_read_them(
        self, inputs: InputProcessor, length: int, phrase: str
    ) -> None:
        """By these phrases Claude Code and LiteLLM know that a conversation has to be made shorter."""
        with pytest.raises(PromptTooLongError, match=phrase):
            new_request(inputs, (1,) * length, max_tokens=5)


class TestTruncation:
    @pytest.mark.parametrize(
        ("truncate", "max_tokens", "kept"),
        [(None, 4, 60), (10, 4, 10), (60, 4, 60), (100, 4, 60), (-1, 4, 60), (-1, 30, 34), (-1, None, 60)],
    )
    def test_the_end_of_the_prompt_is_kept(
        self, inputs: InputProcessor, truncate: int | None, max_tokens: int | None, kept: int
    ) -> None:
        state = new_request(inputs, range(60), truncate_prompt_tokens=truncate, max_tokens=max_tokens)
        assert state.head.prompt_token_ids == tuple(range(60 - kept, 60))
        assert state.requests[0].prompt_token_ids == state.head.prompt_token_ids

    def test_any_prompt_fits_where_as_much_as_there_is_room_for_is_kept(self, inputs: InputProcessor) -> None:
        state = new_request(inputs, (1,) * 500, truncate_prompt_tokens=-1, max_tokens=None)
        assert (len(state.head.prompt_token_ids), state.requests[0].max_tokens) == (63, 1)


class TestOptions:
    def test_they_are_handed_on(self, inputs: InputProcessor) -> None:
        options = RequestOptions(fairness_key="me", cache_salt="salt")
        assert new_request(inputs, (1,), options=options).requests[0].options == options

    def test_priorities_are_refused_where_they_would_do_nothing(self, byte_model: Path) -> None:
        options = RequestOptions(priority=-1)
        by_priority = input_processor(byte_model, scheduling_policy="priority")
        assert new_request(by_priority, options=options).requests[0].options == options
        with pytest.raises(InvalidRequestError, match="--scheduling-policy priority") as caught:
            new_request(input_processor(byte_model), options=options)
        assert caught.value.param == "priority"

    def test_what_is_left_of_the_time_is_handed_on(self, inputs: InputProcessor) -> None:
        options = RequestOptions(timeout=100.0, queue_timeout=1.0)
        arrived = time.monotonic() - 10
        (request,) = new_request(inputs, (1,), options=options, origin=Origin(arrived=arrived)).requests
        assert request.options.timeout == pytest.approx(90, abs=5)
        assert request.options.queue_timeout is not None
        assert 0 < request.options.queue_timeout < 1e-6, "the core is to say that it is too late"
        assert request.options.first_token_timeout is None


class TestBeamSearch:
    def test_each_request_asks_for_candidates_enough(self, inputs: InputProcessor) -> None:
        (request,) = new_request(inputs, beams=BeamSearchParams(beam_width=3, max_tokens=4)).requests
        assert (request.max_tokens, request.num_logprobs) == (1, 6)
        assert request.stop_token_ids == frozenset(), "the search sees what ends"

    def test_never_more_than_there_are(self, inputs: InputProcessor) -> None:
        (request,) = new_request(
            replace(inputs, builder=replace(inputs.builder, vocab_size=5)),
            beams=BeamSearchParams(beam_width=3, max_tokens=4),
        ).requests
        assert request.num_logprobs == 5

    def test_the_whole_search_must_fit(self, inputs: InputProcessor) -> None:
        with pytest.raises(PromptTooLongError, match="lower max_tokens to 4") as caught:
            new_request(inputs, (1,) * 60, beams=BeamSearchParams(beam_width=3, max_tokens=5))
        assert caught.value.param == "max_tokens"

    def test_more_beams_than_the_queue_can_ever_hold_are_refused(self, byte_model: Path) -> None:
        inputs = input_processor(byte_model, max_num_queued_requests=3)
        with pytest.raises(InvalidRequestError, match="beam_width: 4") as caught:
            new_request(inputs, beams=BeamSearchParams(beam_width=4, max_tokens=5))
        assert caught.value.param == "beam_width"


def test_long_lists_are_counted() -> None:
    assert num_items(SamplingParams()) == 0
    assert num_items(SamplingParams(bad_words=("abc", "de"), allowed_token_ids=range(10))) == 15
    assert num_items(BeamSearchParams(beam_width=2, max_tokens=2)) == 0


def test_a_rank_is_one_that_is_served_here(byte_model: Path) -> None:
    processor = input_processor(byte_model, data_parallel_size=3)
    options = RequestOptions(data_parallel_rank=2)
    assert new_request(processor, options=options).requests[0].options == options
    with pytest.raises(InvalidRequestError, match="served here, 0 to 2, got 3") as caught:
        new_request(processor, options=RequestOptions(data_parallel_rank=3))
    assert caught.value.param == "data_parallel_rank"
