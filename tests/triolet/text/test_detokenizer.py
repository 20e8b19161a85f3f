"""The pieces of a sequence are whole characters and join to the whole text, for any ids in any chunks."""

from __future__ import annotations

import time
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.text.detokenizer import Detokenizer
from triolet.text.tokenizer import Tokenizer


def pieces_of(detokenizer: Detokenizer, chunks: list[list[int]]) -> list[str]:
    return [*(detokenizer.add(chunk) for chunk in chunks), detokenizer.flush()]


def chunks_of_ids(largest: int) -> st.SearchStrategy[list[list[int]]]:
    # One id in four is among the first: specials, and tokens of single bytes.
    token_id = st.one_of(st.integers(-2, largest + 5), st.integers(0, min(largest, 260)))
    return st.lists(st.lists(token_id, max_size=6), max_size=20)


@pytest.fixture(scope="module", params=["byte_level", "leading_space"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer


@pytest.mark.parametrize("skip", [True, False])
@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_pieces_join_to_the_whole(tokenizer: Tokenizer, skip: bool, data: st.DataObject) -> None:
    chunks = data.draw(chunks_of_ids(tokenizer.vocab_size))
    pieces = pieces_of(Detokenizer(tokenizer, skip_special_tokens=skip), chunks)
    assert "".join(pieces) == tokenizer.decode([*chain(*chunks)], skip_special_tokens=skip)


@given(text=st.text())
@settings(deadline=None, max_examples=200)
def test_no_character_is_ever_cut(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    pieces = pieces_of(Detokenizer(tokenizer), [[i] for i in token_ids])
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(head=st.text(), tail=st.text())
@settings(deadline=None, max_examples=100)
def test_a_continuation_keeps_its_first_space(tokenizer: Tokenizer, head: str, tail: str) -> None:
    head_ids, tail_ids = tokenizer.encode(head), tokenizer.encode(tail, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, is_continuation=True)
    joined = "".join(pieces_of(detokenizer, [[i] for i in tail_ids]))
    if tokenizer.decode(head_ids):
        assert tokenizer.decode(head_ids) + joined == tokenizer.decode(head_ids + tail_ids)


def test_an_emoji_waits_for_its_last_byte(byte_level: Tokenizer) -> None:
    *head, last = byte_level.encode("\U0001f9ff")  # not in the corpus: several tokens
    detokenizer = Detokenizer(byte_level)
    assert [detokenizer.add([i]) for i in head] == [""] * len(head)
    assert detokenizer.add([last]) == "\U0001f9ff"
    assert detokenizer.flush() == ""


def test_an_unfinished_character_is_flushed(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level)
    assert detokenizer.add(byte_level.encode("a\U0001f9ff")[:-1]) == "a"
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_special_tokens_are_left_out_on_request(byte_level: Tokenizer) -> None:
    token_ids = byte_level.encode("a<|im_end|>b")
    assert Detokenizer(byte_level, skip_special_tokens=True).add(token_ids) == "ab"
    assert Detokenizer(byte_level, skip_special_tokens=False).add(token_ids) == "a<|im_end|>b"


def test_a_character_split_by_a_special_token_is_not_joined_when_shown(byte_level: Tokenizer) -> None:
    first, *rest = byte_level.encode("\U0001f9ff")
    token_ids = [first, *byte_level.encode("<|im_end|>"), *rest]
    shown = "".join(pieces_of(Detokenizer(byte_level, skip_special_tokens=False), [token_ids]))
    assert shown.startswith("\ufffd<|im_end|>\ufffd")


@pytest.mark.parametrize("text", ["\ufffd" * 20_000, "ordinary words, one after another. " * 3_000])
def test_time_per_token_does_not_grow(byte_level: Tokenizer, text: str) -> None:
    token_ids = byte_level.encode(text)
    detokenizer = Detokenizer(byte_level)
    quarter = len(token_ids) // 4
    times = []
    for start in range(0, 4 * quarter, quarter):
        started = time.thread_time()
        for token_id in token_ids[start : start + quarter]:
            detokenizer.add((token_id,))
        times.append(time.thread_time() - started)
    assert times[3] < 5 * min(times[:3])
    assert sum(times) / (4 * quarter) < 50e-6  # about 1.5 µs on an idle machine
