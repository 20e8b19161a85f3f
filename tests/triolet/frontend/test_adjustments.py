from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fakes import EOS_ID, VOCAB_SIZE
from tests.triolet.frontend.parts import input_processor

from triolet.errors import InvalidRequestError
from triolet.frontend.adjustments import logits_adjustments
from triolet.request import LogitsAdjustments
from triolet.sampling_params import SamplingParams
from triolet.text.tokenizer import Tokenizer

ENDS = frozenset({EOS_ID, 5})


@pytest.fixture(scope="module")
def tokenizer(byte_model: Path) -> Tokenizer:
    return input_processor(byte_model).tokenizer


def adjust(tokenizer: Tokenizer, **fields: Any) -> LogitsAdjustments | None:
    return logits_adjustments(
        SamplingParams(**fields), tokenizer=tokenizer, vocab_size=VOCAB_SIZE, end_token_ids=ENDS
    )


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.5, "top_k": 3, "stop_token_ids": (5,)},
        {"logit_bias": {}},
        {"logit_bias": {3: 0.0}},
    ],
)
def test_where_nothing_is_asked_for_there_are_none(tokenizer: Tokenizer, fields: Any) -> None:
    assert adjust(tokenizer, **fields) is None


def test_everything_is_handed_on(tokenizer: Tokenizer) -> None:
    def processor(token_ids: Any, logits: Any) -> Any:
        return logits

    assert adjust(
        tokenizer,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={7: 2.0, 3: -100},
        allowed_token_ids=(9, 3, 9),
        min_tokens=2,
        logits_processors=(processor,),
    ) == LogitsAdjustments(
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias=((3, -100), (7, 2.0)),
        allowed_token_ids=(3, 9),
        min_tokens=2,
        end_token_ids=ENDS,
        processors=(processor,),
    )


class TestBadWords:
    def test_a_word_is_banned_at_the_beginning_and_after_a_space(self, tokenizer: Tokenizer) -> None:
        adjustments = adjust(tokenizer, bad_words=("ab", "ab", " c"))
        assert adjustments is not None
        assert adjustments.banned_sequences == (tuple(b"ab"), tuple(b" ab"), tuple(b" c"))

    def test_a_word_that_is_no_text_is_refused(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InvalidRequestError, match=r"bad_words: .*surrogate") as caught:
            adjust(tokenizer, bad_words=("\ud800",))
        assert caught.value.param == "bad_words"

    def test_tokens_that_the_model_has_no_logit_for_never_come_out_anyway(self, tokenizer: Tokenizer) -> None:
        params = SamplingParams(bad_words=("</s>", "a"))
        adjustments = logits_adjustments(
            params, tokenizer=tokenizer, vocab_size=EOS_ID, end_token_ids=frozenset()
        )
        assert adjustments is not None
        assert adjustments.banned_sequences == (tuple(b"a"), tuple(b" a"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {VOCAB_SIZE: 1.0}),
        ("allowed_token_ids", (1, VOCAB_SIZE)),
        ("logit_bias", {2**31 - 1: 1}),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{name}: .*outside the vocabulary") as caught:
        adjust(tokenizer, **{name: value})
    assert caught.value.param == name


@pytest.mark.parametrize(
    "fields",
    [
        {"allowed_token_ids": (*b"a",), "bad_words": ("a",)},
        {"allowed_token_ids": (5, EOS_ID), "min_tokens": 1},
        {"allowed_token_ids": (5, *b"a"), "min_tokens": 1, "bad_words": ("a",)},
    ],
)
def test_where_nothing_would_be_left_to_choose_from_it_is_refused(tokenizer: Tokenizer, fields: Any) -> None:
    with pytest.raises(InvalidRequestError, match="leave none of them") as caught:
        adjust(tokenizer, **fields)
    assert caught.value.param == "allowed_token_ids"


def test_a_word_of_several_tokens_leaves_its_letters(tokenizer: Tokenizer) -> None:
    assert adjust(tokenizer, allowed_token_ids=(*b"ab",), bad_words=("ab",)) is not None
