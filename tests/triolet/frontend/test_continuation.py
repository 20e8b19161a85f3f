from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.triolet.frontend.parts import input_processor, token_output

from triolet.errors import EngineGenerateError
from triolet.frontend.continuation import Continuation
from triolet.request import FinishReason
from triolet.sampling_params import RequestOutputKind, SamplingParams
from triolet.text.detokenizer import Detokenizer
from triolet.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(byte_model: Path) -> Tokenizer:
    return input_processor(byte_model).tokenizer


def new_continuation(tokenizer: Tokenizer, **fields: Any) -> Continuation:
    return Continuation(3, SamplingParams(**fields), Detokenizer(tokenizer, is_continuation=True))


def test_news_is_told_once(tokenizer: Tokenizer) -> None:
    continuation = new_continuation(tokenizer)
    assert not continuation.has_news
    continuation.update(token_output(0, b"a"), 1.0)
    assert continuation.has_news
    continuation.take()
    assert not continuation.has_news
    continuation.update(token_output(0), 2.0)
    assert not continuation.has_news
    continuation.finish(FinishReason.ABORT)
    assert continuation.has_news


@pytest.mark.parametrize(("kind", "second"), [("cumulative", "ab"), ("delta", "b")])
def test_what_is_taken_is_new_or_all(tokenizer: Tokenizer, kind: str, second: str) -> None:
    continuation = new_continuation(tokenizer, output_kind=RequestOutputKind(kind))
    taken = []
    for data in (b"a", b"b"):
        continuation.update(token_output(0, data), 1.0)
        taken.append(continuation.take())
    assert [completion.text for completion in taken] == ["a", second]
    assert [completion.index for completion in taken] == [3, 3]
    assert (continuation.num_tokens, continuation.last_token) == (2, 1.0)


class TestMinTokens:
    def test_a_stop_string_counts_only_where_it_begins_after_them(self, tokenizer: Tokenizer) -> None:
        continuation = new_continuation(tokenizer, stop="ab", min_tokens=3)
        continuation.update(token_output(0, b"ababxab"), 1.0)
        completion = continuation.take()
        assert (completion.text, completion.stop_reason) == ("ababx", "ab")
        assert continuation.num_tokens == 7

    def test_one_that_only_ends_after_them_does_not(self, tokenizer: Tokenizer) -> None:
        continuation = new_continuation(tokenizer, stop="ab", min_tokens=1)
        continuation.update(token_output(0, b"ab"), 1.0)
        assert continuation.finish_reason is None
        continuation.finish(FinishReason.LENGTH)
        assert continuation.take().text == "ab"


class TestStopCriteria:
    def test_it_is_asked_after_each_token_with_all_there_is(self, tokenizer: Tokenizer) -> None:
        seen: list[tuple[list[int], str]] = []

        def note(token_ids: Any, text: str) -> bool:
            seen.append((list(token_ids), text))
            return False

        data = "né b".encode()
        new_continuation(tokenizer, stop_criteria=(note,), stop="b!").update(token_output(0, data), 1.0)
        assert [text for _, text in seen] == ["n", "n", "né", "né ", "né b"]
        assert [bytes(token_ids) for token_ids, _ in seen] == [data[: end + 1] for end in range(5)]

    def test_it_ends_the_continuation_with_what_was_held_back(self, tokenizer: Tokenizer) -> None:
        continuation = new_continuation(
            tokenizer, stop_criteria=(lambda ids, text: len(ids) == 2,), stop="b!"
        )
        continuation.update(token_output(0, b"abcd"), 1.0)
        completion = continuation.take()
        assert (completion.text, completion.token_ids) == ("ab", [*b"ab"])
        assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, None)

    def test_not_before_min_tokens(self, tokenizer: Tokenizer) -> None:
        continuation = new_continuation(tokenizer, stop_criteria=(lambda ids, text: True,), min_tokens=3)
        continuation.update(token_output(0, b"abcd"), 1.0)
        assert continuation.take().text == "abc"

    def test_what_it_does_to_the_list_is_its_own_affair(self, tokenizer: Tokenizer) -> None:
        continuation = new_continuation(tokenizer, stop_criteria=(lambda ids, text: ids.clear(),))
        continuation.update(token_output(0, b"ab"), 1.0)
        assert continuation.take().token_ids == [*b"ab"]

    def test_what_it_raises_is_the_requests_error(self, tokenizer: Tokenizer) -> None:
        continuation = new_continuation(tokenizer, stop_criteria=(lambda ids, text: 1 / 0,))
        with pytest.raises(EngineGenerateError, match=r"stop_criteria: .*ZeroDivisionError") as caught:
            continuation.update(token_output(0, b"ab"), 1.0)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
