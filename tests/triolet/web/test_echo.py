"""What the first delta of a choice becomes when its prompt is to be echoed."""

from __future__ import annotations

from tests.triolet.web.fake_text import ByteTokenizer

from triolet.request import TokenLogprobs
from triolet.web.echo import Echo
from triolet.web.generation import Delta, PromptPart

B = TokenLogprobs((98,), (-1.0,), 1)
X = TokenLogprobs((120,), (-2.0,), 1)


def delta(prompt: PromptPart | None, logprobs: list[TokenLogprobs] | None = None) -> Delta:
    return Delta(
        index=0, text="x", logprobs=logprobs, finish_reason=None, stop_reason=None, seed=1, prompt=prompt
    )


def echo(value: Delta, *, is_truncated: bool = False) -> Delta:
    return Echo(ByteTokenizer(), is_truncated)(value)


def test_only_the_first_delta_of_a_choice_is_another() -> None:
    later = delta(None)
    assert echo(later) is later
    assert echo(delta(PromptPart("ab", (97, 98), None))).text == "abx"


def test_tokens_are_spelled_where_there_is_no_text_or_it_was_cut() -> None:
    assert echo(delta(PromptPart(None, (97, 98), None))).text == "abx"
    assert echo(delta(PromptPart("ab", (98,), None)), is_truncated=True).text == "bx"


def test_the_first_token_has_no_logprob() -> None:
    logprobs = echo(delta(PromptPart("ab", (97, 98), [None, B]), [X])).logprobs
    assert logprobs == [TokenLogprobs((97,), (), 0), B, X]


def test_logprobs_come_only_where_they_were_asked_for() -> None:
    assert echo(delta(PromptPart("ab", (97, 98), [None, B]))).logprobs is None
    assert echo(delta(PromptPart("ab", (97, 98), None), [X])).logprobs == [X]
