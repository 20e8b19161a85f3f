from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import EOS_ID, VOCAB_SIZE
from tests.triolet.frontend.parts import input_processor

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.frontend.input_processor import InputProcessor
from triolet.request import RequestOptions
from triolet.sampling_params import SamplingParams, StructuredOutputs

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def inputs(byte_model: Path) -> InputProcessor:
    return input_processor(byte_model, max_model_len=64)


class TestPrompts:
    def test_text_becomes_tokens(self, inputs: InputProcessor) -> None:
        assert inputs.tokenize("né") == tuple("né".encode())

    @pytest.mark.parametrize("prompt", [[0, 5, VOCAB_SIZE - 1], (7,), range(1, 4)])
    def test_token_ids_are_taken_as_they_are(self, inputs: InputProcessor, prompt: Any) -> None:
        assert inputs.tokenize(prompt) == tuple(prompt)

    @pytest.mark.parametrize(
        "prompt",
        [
            "", [], (), None, 5, 1.5, True, b"abc", bytearray(b"a"), {"a": 1}, {1, 2}, iter([1]), object(),
            ["a"], [1, "a"], [True], [1.0], [None], [[1]], [-1], [VOCAB_SIZE], [2**70], [1, -(2**70)],
            "\ud800",
        ],
        ids=repr,
    )  # fmt: skip
    def test_all_else_is_refused_naming_the_prompt(self, inputs: InputProcessor, prompt: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            inputs.tokenize(prompt)
        assert caught.value.param == "prompt"
        assert caught.value.message.startswith("prompt")

    def test_the_error_says_which_token(self, inputs: InputProcessor) -> None:
        with pytest.raises(InvalidRequestError, match=r"token 2 is 999, not in the vocabulary \[0, 258\)"):
            inputs.tokenize([1, 2, 999])
        with pytest.raises(InvalidRequestError, match=r"prompt\[1\]: must be a token id, got 'x'"):
            inputs.tokenize([1, "x"])  # type: ignore[list-item]

    def test_a_token_that_only_the_tokeniser_knows_is_refused(self, byte_model: Path) -> None:
        whole = input_processor(byte_model)
        smaller = replace(whole, vocab_size=EOS_ID)
        with pytest.raises(InvalidRequestError, match="not in the vocabulary"):
            smaller.tokenize("hi</s>")


class TestChat:
    def test_a_conversation_becomes_text_and_tokens(self, inputs: InputProcessor) -> None:
        text = inputs.render_chat(HI)
        assert text == "[user]Hi\n[assistant]"
        assert inputs.tokenize_chat(text) == tuple(text.encode())
        assert inputs.render_chat(HI, add_generation_prompt=False) == "[user]Hi\n"

    @pytest.mark.parametrize(
        "messages",
        [None, 5, "Hi", b"Hi", {"role": "user"}, iter(HI), [], [5], ["Hi"], [None], [{}], [{"role": 5}],
         [{"role": "user", "content": 5}]],
        ids=repr,
    )  # fmt: skip
    def test_all_else_is_refused_naming_the_messages(self, inputs: InputProcessor, messages: Any) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            inputs.render_chat(messages)
        assert caught.value.param == "messages"

    def test_text_that_is_not_unicode_is_blamed_on_the_messages(self, inputs: InputProcessor) -> None:
        with pytest.raises(InvalidRequestError, match=r"messages: .*surrogate") as caught:
            inputs.tokenize_chat(inputs.render_chat([{"role": "user", "content": "\ud800"}]))
        assert caught.value.param == "messages"

    def test_a_model_without_template_says_what_to_do(self, inputs: InputProcessor) -> None:
        plain = replace(inputs, chat_template=None)
        with pytest.raises(InvalidRequestError, match="--chat-template"):
            plain.render_chat(HI)


class TestLimits:
    @pytest.mark.parametrize(
        ("num_prompt", "max_tokens", "room"), [(60, 4, 4), (60, None, 4), (63, None, 1), (1, 9, 9)]
    )
    def test_what_fits(
        self, inputs: InputProcessor, num_prompt: int, max_tokens: int | None, room: int
    ) -> None:
        state = inputs.process((1,) * num_prompt, SamplingParams(max_tokens=max_tokens))
        assert state.requests[0].max_tokens == room

    @pytest.mark.parametrize(
        ("num_prompt", "max_tokens", "param"),
        [(64, None, "prompt"), (65, 1, "prompt"), (60, 5, "max_tokens")],
    )
    def test_what_does_not(
        self, inputs: InputProcessor, num_prompt: int, max_tokens: int | None, param: str
    ) -> None:
        with pytest.raises(PromptTooLongError) as caught:
            inputs.process((1,) * num_prompt, SamplingParams(max_tokens=max_tokens))
        assert caught.value.param == param

    def test_a_conversation_that_is_too_long_is_blamed_on_the_messages(self, inputs: InputProcessor) -> None:
        with pytest.raises(PromptTooLongError, match=r"messages: 72 tokens") as caught:
            inputs.prepare_chat([{"role": "user", "content": "x" * 54}], SamplingParams())
        assert caught.value.param == "messages"

    def test_stop_token_ids_must_be_in_the_vocabulary(self, inputs: InputProcessor) -> None:
        with pytest.raises(InvalidRequestError, match="stop_token_ids: 258") as caught:
            inputs.process((1,), SamplingParams(stop_token_ids=(1, 258)))
        assert caught.value.param == "stop_token_ids"

    def test_stops_too_long_for_anyone_are_blamed_on_stop(self, inputs: InputProcessor) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            inputs.process((1,), SamplingParams(stop=("x" * 20_000,)))
        assert caught.value.param == "stop"


class TestRequests:
    def test_everything_is_handed_on(self, inputs: InputProcessor) -> None:
        params = SamplingParams(
            temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, seed=11, logprobs=3, stop_token_ids=(4,)
        )
        request = inputs.process((1, 2), params).requests[0]
        assert (request.temperature, request.top_p, request.top_k, request.min_p) == (0.5, 0.9, 7, 0.1)
        assert (request.prompt_token_ids, request.seed, request.num_logprobs) == ((1, 2), 11, 3)
        assert request.stop_token_ids == {4, EOS_ID}

    def test_the_end_of_sequence_may_be_ignored(self, inputs: InputProcessor) -> None:
        assert inputs.process((1,), SamplingParams(ignore_eos=True)).requests[0].stop_token_ids == frozenset()

    def test_internal_ids_differ_though_callers_use_the_same_name(self, inputs: InputProcessor) -> None:
        states = [inputs.process((1,), SamplingParams(), request_id="mine") for _ in range(3)]
        assert {state.head.request_id for state in states} == {"mine"}
        assert len({state.requests[0].request_id for state in states}) == 3

    def test_a_request_without_a_name_gets_one(self, inputs: InputProcessor) -> None:
        names = [inputs.process((1,), SamplingParams()).head.request_id for _ in range(2)]
        assert len(set(names)) == 2


class TestSeveral:
    def test_children_differ_in_id_and_seed_alone(self, inputs: InputProcessor) -> None:
        state = inputs.process((1, 2), SamplingParams(n=3, seed=7, logprobs=2))
        first, second, third = state.requests
        assert [request.seed for request in state.requests] == [7, 8, 9]
        assert replace(second, request_id=first.request_id, seed=7) == first
        assert len({request.request_id for request in (first, second, third)}) == 3
        assert state.head.seed == 7

    def test_the_prompts_logprobs_are_asked_for_once(self, inputs: InputProcessor) -> None:
        state = inputs.process((1, 2), SamplingParams(n=2, prompt_logprobs=4))
        assert [request.num_prompt_logprobs for request in state.requests] == [4, None]

    def test_more_than_the_queue_can_ever_hold_are_refused(self, byte_model: Path) -> None:
        inputs = input_processor(byte_model, max_num_queued_requests=3)
        inputs.process((1,), SamplingParams(n=3))
        with pytest.raises(InvalidRequestError, match=r"n: 4 .*--max-num-queued-requests") as caught:
            inputs.process((1,), SamplingParams(n=4))
        assert caught.value.param == "n"


class TestAdjustments:
    def test_there_are_none_where_nothing_is_asked_for(self, inputs: InputProcessor) -> None:
        assert inputs.process((1,), SamplingParams()).requests[0].adjustments is None

    def test_min_tokens_forbid_what_ends_the_output(self, inputs: InputProcessor) -> None:
        (request,) = inputs.process((1,), SamplingParams(min_tokens=2, stop_token_ids=(5,))).requests
        assert request.adjustments is not None
        assert (request.adjustments.min_tokens, request.adjustments.end_token_ids) == (2, {5, EOS_ID})

    def test_min_tokens_must_fit(self, inputs: InputProcessor) -> None:
        with pytest.raises(PromptTooLongError, match="lower min_tokens to 4") as caught:
            inputs.process((1,) * 60, SamplingParams(min_tokens=5, max_tokens=None))
        assert caught.value.param == "min_tokens"


class TestTruncation:
    @pytest.mark.parametrize(
        ("truncate", "max_tokens", "kept"),
        [(None, 4, 60), (10, 4, 10), (60, 4, 60), (100, 4, 60), (-1, 4, 60), (-1, 30, 34), (-1, None, 60)],
    )
    def test_the_end_of_the_prompt_is_kept(
        self, inputs: InputProcessor, truncate: int | None, max_tokens: int | None, kept: int
    ) -> None:
        params = SamplingParams(truncate_prompt_tokens=truncate, max_tokens=max_tokens)
        state = inputs.process(tuple(range(60)), params)
        assert state.head.prompt_token_ids == tuple(range(60 - kept, 60))
        assert state.requests[0].prompt_token_ids == state.head.prompt_token_ids

    def test_any_prompt_fits_where_as_much_as_there_is_room_for_is_kept(self, inputs: InputProcessor) -> None:
        params = SamplingParams(truncate_prompt_tokens=-1, max_tokens=None)
        state = inputs.process((1,) * 500, params)
        assert (len(state.head.prompt_token_ids), state.requests[0].max_tokens) == (63, 1)


class TestOptions:
    def test_they_are_handed_on(self, inputs: InputProcessor) -> None:
        options = RequestOptions(fairness_key="me", cache_salt="salt")
        assert inputs.process((1,), SamplingParams(), options=options).requests[0].options == options

    def test_priorities_are_refused_where_they_would_do_nothing(self, byte_model: Path) -> None:
        options = RequestOptions(priority=-1)
        by_priority = input_processor(byte_model, scheduling_policy="priority")
        assert by_priority.process((1,), SamplingParams(), options=options).requests[0].options == options
        with pytest.raises(InvalidRequestError, match="--scheduling-policy priority") as caught:
            input_processor(byte_model).process((1,), SamplingParams(), options=options)
        assert caught.value.param == "priority"

    def test_what_is_left_of_the_time_is_handed_on(self, inputs: InputProcessor) -> None:
        options = RequestOptions(timeout=100.0, queue_timeout=1.0)
        arrived = time.monotonic() - 10
        (request,) = inputs.process((1,), SamplingParams(), options=options, arrived=arrived).requests
        assert request.options.timeout == pytest.approx(90, abs=5)
        assert request.options.queue_timeout is not None
        assert 0 < request.options.queue_timeout < 1e-6, "the core is to say that it is too late"
        assert request.options.first_token_timeout is None


class TestStructuredOutputs:
    def test_a_grammar_is_compiled_for_every_continuation(self, inputs: InputProcessor) -> None:
        params = SamplingParams(structured_outputs=StructuredOutputs(regex="[ab]+"), n=3)
        state = inputs.prepare("x", params)
        adjustments = [request.adjustments for request in state.requests]
        assert ["[ab]+" in (found.grammar or "") for found in adjustments if found] == [True] * 3
        assert not inputs.must_compile(params)

    def test_without_one_there_is_nothing_to_compile(self, inputs: InputProcessor) -> None:
        assert not inputs.must_compile(SamplingParams())
        assert inputs.prepare("x", SamplingParams()).requests[0].adjustments is None

    def test_what_cannot_be_compiled_is_refused(self, inputs: InputProcessor) -> None:
        params = SamplingParams(structured_outputs=StructuredOutputs(json={"uniqueItems": True}))
        with pytest.raises(InvalidRequestError, match="uniqueItems") as caught:
            inputs.prepare("x", params)
        assert caught.value.param == "structured_outputs.json"

    def test_the_end_of_a_grammar_ends_the_request_whatever_is_ignored(self, inputs: InputProcessor) -> None:
        params = SamplingParams(structured_outputs=StructuredOutputs(regex="a"), ignore_eos=True)
        assert inputs.prepare("x", params).requests[0].stop_token_ids == {EOS_ID}
