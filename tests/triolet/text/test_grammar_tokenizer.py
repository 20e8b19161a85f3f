"""llguidance sees each token as the bytes that it spells, whatever the tokenizer was made from."""

from __future__ import annotations

import llguidance
import numpy as np
import pytest
from tests.triolet.text.drive import token_ids_of

from triolet.text.grammar_tokenizer import grammar_tokenizer
from triolet.text.tokenizer import Tokenizer


def with_end(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with an end-of-sequence token."""
    tokenizer.eos_token_ids = tokenizer.eos_token_ids or frozenset(sorted(tokenizer.special_token_ids)[:1])
    return tokenizer


@pytest.mark.model
def test_the_bytes_of_the_default_model(smollm2: Tokenizer) -> None:
    check_bytes(smollm2)


def test_the_bytes_of_a_byte_level_tokenizer(byte_level: Tokenizer) -> None:
    check_bytes(with_end(byte_level))


def test_the_bytes_of_a_sentencepiece_tokenizer(leading_space: Tokenizer) -> None:
    """Spaces are written ▁ there, and bytes of which nothing else is made are tokens like <0x0A>."""
    tokenizer = with_end(leading_space)
    known = grammar_tokenizer(tokenizer, tokenizer.vocab_size)
    check_bytes(tokenizer)
    newline = next(i for i in range(tokenizer.vocab_size) if tokenizer.id_to_token(i) == "<0x0A>")
    assert known.decode_bytes([newline]) == b"\n"
    assert any(known.decode_bytes([i]) == b" the" for i in range(tokenizer.vocab_size))


def check_bytes(tokenizer: Tokenizer) -> None:
    known = grammar_tokenizer(tokenizer, tokenizer.vocab_size)
    assert known.vocab_size == tokenizer.vocab_size
    assert set(known.eos_tokens) == set(tokenizer.eos_token_ids)
    for token_id in range(tokenizer.vocab_size):
        spelled = tokenizer.token_bytes((token_id,))
        if token_id in tokenizer.special_token_ids:
            assert known.is_special_token(token_id)
        elif spelled != b"\xff":  # no text holds this byte, and it is llguidance's mark of special tokens
            assert known.decode_bytes([token_id]) == spelled


@pytest.mark.model
@pytest.mark.parametrize("num_padding", [0, 1, 100])
def test_rows_of_the_model_without_a_token_are_never_allowed(smollm2: Tokenizer, num_padding: int) -> None:
    vocab_size = smollm2.vocab_size + num_padding
    matcher = llguidance.LLMatcher(grammar_tokenizer(smollm2, vocab_size), "start: /(.|\\n)*/")
    mask = np.zeros(-(-vocab_size // 32), np.int32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    assert max(token_ids_of(mask)) == smollm2.vocab_size - 1


@pytest.mark.model
def test_tokens_for_which_the_model_has_no_row_are_never_allowed(smollm2: Tokenizer) -> None:
    matcher = llguidance.LLMatcher(grammar_tokenizer(smollm2, 1000), "start: /(.|\\n)*/")
    mask = np.zeros(32, np.int32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    assert max(token_ids_of(mask)) == 999
