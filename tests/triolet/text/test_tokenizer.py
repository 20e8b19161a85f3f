"""What holds for every tokenizer, whatever it was read from."""

from __future__ import annotations

import threading
import time

import pytest
from tests.triolet.text.samples import sample_texts

from triolet.errors import InvalidRequestError
from triolet.text.tokenizer import LONG_TEXT, Tokenizer


def test_text_comes_back(byte_level: Tokenizer, leading_space: Tokenizer) -> None:
    for text in sample_texts(1_000):
        if "▁" in text:
            continue  # SentencePiece's own mark for a space
        for tokenizer in (byte_level, leading_space):
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False).endswith(text)


def test_ids_that_are_no_tokens_spell_nothing(byte_level: Tokenizer) -> None:
    size = byte_level.vocab_size
    assert byte_level.decode([-1, *byte_level.encode("ab"), size, size + 1_000, 2**40]) == "ab"
    assert byte_level.id_to_token(-1) is None
    assert byte_level.id_to_token(size) is None
    assert byte_level.decode([]) == ""


def test_tokens_and_ids(byte_level: Tokenizer) -> None:
    (token_id,) = byte_level.encode("<|im_end|>")
    assert byte_level.id_to_token(token_id) == "<|im_end|>"
    assert token_id in byte_level.special_token_ids


def test_nothing_is_tidied_away(byte_level: Tokenizer) -> None:
    text = "hello , world ! do n't  stop ."
    assert byte_level.decode(byte_level.encode(text)) == text


def test_long_and_short_texts_take_the_same_way(byte_level: Tokenizer) -> None:
    unit = "The quick brown fox, 123.\n"
    long = unit * (LONG_TEXT // len(unit) + 2)
    assert byte_level.encode(long) == byte_level.encode(unit) * (len(long) // len(unit))


@pytest.mark.parametrize("text", ["a\ud800b", "\udfff", "x" * LONG_TEXT + "\udc00"])
def test_a_lone_surrogate_is_refused(byte_level: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"lone surrogate \(U\+D.{3}\) at character \d+"):
        byte_level.encode(text)


def test_what_is_no_string_is_a_type_error(byte_level: Tokenizer) -> None:
    with pytest.raises(TypeError, match="text must be a str, got bytes"):
        byte_level.encode(b"x" * 10)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byte_level", "leading_space"])
@pytest.mark.parametrize("unit", ["a", " ", "word ", "\ufffd", "<|im_end|>"])
def test_two_megabytes_of_anything(request: pytest.FixtureRequest, name: str, unit: str) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    text = unit * (2_000_000 // len(unit.encode()))
    started = time.perf_counter()
    token_ids = tokenizer.encode(text)
    assert time.perf_counter() - started < 60
    assert tokenizer.decode(token_ids, skip_special_tokens=False).endswith(text)


@pytest.mark.slow
def test_other_threads_run_while_a_long_text_is_encoded(byte_level: Tokenizer) -> None:
    done = threading.Event()
    text = "The quick brown fox jumps over the lazy dog. " * 40_000

    def encode() -> None:
        byte_level.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    num_turns = 0
    while not done.wait(0.001):
        num_turns += 1
    thread.join()
    assert num_turns >= 10
