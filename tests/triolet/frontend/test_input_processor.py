from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import EOS_ID, VOCAB_SIZE
from tests.triolet.frontend.parts import input_processor

from triolet.errors import InvalidRequestError, PromptTooLongError
from triolet.frontend.input_processor import InputProcessor, prompt_length
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
        ("prompt", "text"), [({"prompt": "né"}, "né"), ({"prompt_token_ids": [*"né".encode()]}, None)]
    )
    def test_either_may_come_under_its_name(
        self, inputs: InputProcessor, prompt: Any, text: str | None
    ) -> None:
        state = inputs.prepare(prompt, SamplingParams())
        assert state.head.prompt_token_ids == tuple("né".encode())
        assert state.head.prompt == text

    @pytest.mark.parametrize(
        "prompt",
        [
            {}, {"prompt": [1]}, {"prompt_token_ids": 5}, {"prompt": "a", "multi_modal_data": {}},
            "", [], (), None, 5, 1.5, True, b"abc", bytearray(b"a"), {"a": 1}, {1, 2},
            pytest.param(iter([1]), id="an iterator"), pytest.param(object(), id="an object"),
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

    @pytest.mark.parametrize(
        ("prompt", "length"),
        [("abc", 3), ([1, 2], 2), ({"prompt": "abcd"}, 4), (None, 0), ({"prompt": 5}, 0)],
    )
    def test_the_length_is_known_before_it_is_looked_at(self, prompt: Any, length: int) -> None:
        assert prompt_length(prompt) == length

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
        [None, 5, "Hi", b"Hi", {"role": "user"}, pytest.param(iter(HI), id="an iterator"), [], [5], ["Hi"],
         [None], [{}], [{"role": 5}], [{"role": "user", "content": 5}]],
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

    def test_a_conversation_that_is_too_long_is_blamed_on_the_messages(self, inputs: InputProcessor) -> None:
        with pytest.raises(PromptTooLongError, match="messages: the prompt is too long: 72") as caught:
            inputs.prepare_chat([{"role": "user", "content": "x" * 54}], SamplingParams())
        assert caught.value.param == "messages"


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
