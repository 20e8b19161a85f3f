"""Pieces between special tokens: the same ids as those of the whole text, and only once what comes again."""

from __future__ import annotations

import gc
import weakref

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.triolet.text.conftest import SPECIALS
from tests.triolet.text.samples import sample_texts, train_byte_level
from tokenizers import models, normalizers, pre_tokenizers

from triolet.text.text_pieces import LONGEST_REMEMBERED, MAX_NUM_MARKS, TextPieces, pieces_of
from triolet.text.tokenizer import Tokenizer
from triolet.text.tokenizer_parts import TokenizerParts

NESTED = (*SPECIALS, "<|im_end|>>", "<|", "|>", "▁", "<s>")
"""Some begin with, end with or hold others."""


def trained(
    pre_tokenizer: pre_tokenizers.PreTokenizer,
    specials: tuple[str, ...] = NESTED,
    normalizer: normalizers.Normalizer | None = None,
) -> tokenizers.Tokenizer:
    return train_byte_level(pre_tokenizer, normalizer=normalizer, specials=specials)


def whole(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def encode_nothing(text: str) -> list[int]:
    return []


def pieces(backend: tokenizers.Tokenizer) -> TextPieces:
    found = pieces_of(backend, lambda text: whole(backend, text))
    assert found is not None
    return found


KINDS = {
    "byte level": trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "space before each piece": trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "leading space": trained(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "normalised": trained(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]),
    ),
    "something put before": trained(
        pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.Prepend("▁")
    ),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_ids_are_those_of_the_whole_text(kind: str) -> None:
    backend = KINDS[kind]
    cut = pieces(backend)
    for text in sample_texts(1_000, specials=NESTED):
        assert cut.encode(text) == whole(backend, text) == cut.encode(text)


@given(st.lists(st.sampled_from((*NESTED, " ", "a", "A|>", "\n", "ﬁ", "é", "<"))).map("".join))
def test_special_tokens_in_any_order_and_inside_each_other(text: str) -> None:
    for backend in KINDS.values():
        assert pieces(backend).encode(text) == whole(backend, text)


def test_tokens_that_are_matched_after_normalising_stay_in_their_piece() -> None:
    backend = trained(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizer=normalizers.Lowercase())
    backend.add_tokens([tokenizers.AddedToken("hello", normalized=True)])
    text = "oh HELLO<|im_end|>Hello world"
    assert pieces(backend).encode(text) == whole(backend, text)


@pytest.mark.parametrize(
    "token",
    [
        tokenizers.AddedToken("<a>", lstrip=True, normalized=False),
        tokenizers.AddedToken("<a>", rstrip=True, normalized=False),
        tokenizers.AddedToken("<a>", single_word=True, normalized=False),
    ],
)
def test_a_token_that_reaches_into_what_is_beside_it_rules_pieces_out(token: tokenizers.AddedToken) -> None:
    backend = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    backend.add_special_tokens([token])
    assert pieces_of(backend, encode_nothing) is None


def test_a_space_before_the_first_piece_only_rules_pieces_out() -> None:
    nested = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    assert pieces_of(trained(nested), encode_nothing) is None


def test_pieces_need_something_to_cut_at_and_not_too_much_of_it() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    assert pieces_of(backend, encode_nothing) is None
    marks = [tokenizers.AddedToken(f"<{number}>", normalized=False) for number in range(MAX_NUM_MARKS + 1)]
    backend.add_special_tokens(marks)
    assert pieces_of(backend, encode_nothing) is None


def test_a_piece_that_comes_again_is_not_encoded_again() -> None:
    asked = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [len(text)]

    cut = TextPieces(encode, ["|"])
    long = "x" * (LONGEST_REMEMBERED + 1)
    for _ in range(2):
        assert cut.encode(f"ab|cde|ab|{long}") == [2, 1, 3, 1, 2, 1, LONGEST_REMEMBERED + 1]
    assert asked == ["ab", "|", "cde", long, long]


def test_what_is_remembered_cannot_be_changed_by_who_asks() -> None:
    cut = TextPieces(lambda text: [len(text)], ["|"])
    cut.encode("ab").append(7)
    assert cut.encode("ab") == [2]


def test_chats_are_encoded_in_pieces_and_prompts_are_not(byte_level: Tokenizer, smollm2: Tokenizer) -> None:
    for tokenizer in (byte_level, smollm2):
        for text in sample_texts(300, specials=SPECIALS):
            assert tokenizer.encode(text, add_special_tokens=False) == tokenizer.encode(text)


def test_a_tokenizer_and_its_pieces_are_no_cycle() -> None:
    trained_parts = TokenizerParts(
        backend=KINDS["byte level"], bos_token_id=None, eos_token_id=None, end_token_ids=frozenset(),
        chat_template=None,
    )  # fmt: skip
    tokenizer = Tokenizer(trained_parts)
    assert tokenizer.encode("a<|im_end|>", add_special_tokens=False)
    gone = weakref.ref(tokenizer)
    gc.disable()
    try:
        del tokenizer
        assert gone() is None
    finally:
        gc.enable()
