"""What tokens spell equals what the ``tokenizers`` decoder makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.triolet.text.samples import sample_texts, train_byte_level
from tokenizers import decoders, models, pre_tokenizers

from triolet.errors import ModelFileError
from triolet.text.gguf_tokenizer import gguf_tokenizer
from triolet.text.sentencepiece_model import sentencepiece_metadata
from triolet.text.token_bytes import Spelling, spell_tokens


def text_of(spelling: Spelling, token_ids: list[int]) -> str:
    text = b"".join(spelling.pieces[i] for i in token_ids).decode(errors="replace")
    return text.removeprefix(" ") if spelling.has_leading_space else text


def backend_of(vocabulary: list[str], decoder: decoders.Decoder | None) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, []))
    if decoder is not None:
        backend.decoder = decoder
    return backend


@pytest.fixture(scope="module")
def byte_level_spelling(byte_level_backend: tokenizers.Tokenizer) -> Spelling:
    return spell_tokens(byte_level_backend)


@pytest.fixture(scope="module")
def byte_level_backend() -> tokenizers.Tokenizer:
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return train_byte_level(pre_tokenizer, specials=("<|end|>", "｜ü｜", "two words"))


@given(data=st.data())
@settings(deadline=None, max_examples=300)
def test_byte_level_is_exact_even_for_broken_utf8(
    byte_level_backend: tokenizers.Tokenizer, byte_level_spelling: Spelling, data: st.DataObject
) -> None:
    last = len(byte_level_spelling.pieces) - 1
    token_ids = data.draw(st.lists(st.one_of(st.integers(0, 255), st.integers(0, last), st.just(last))))
    assert text_of(byte_level_spelling, token_ids) == byte_level_backend.decode(
        token_ids, skip_special_tokens=False
    )


def test_sentencepiece_is_exact_for_whole_characters(sentencepiece_bpe: Path) -> None:
    backend = gguf_tokenizer(sentencepiece_metadata(sentencepiece_bpe, {})).backend
    spelling = spell_tokens(backend)
    for text in sample_texts():
        token_ids = backend.encode(text).ids
        assert text_of(spelling, token_ids) == backend.decode(token_ids, skip_special_tokens=False)


def test_byte_tokens_join_into_characters_and_only_broken_ones_are_replaced() -> None:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend = backend_of(["<0xC3>", "<0xA9>", "▁a", "<0xFF>"], decoders.Sequence(steps))
    spelling = spell_tokens(backend)
    assert spelling.pieces == (b"\xc3", b"\xa9", b" a", b"\xff")
    assert text_of(spelling, [2, 0, 1, 3, 2]) == " aé\ufffd a"


@pytest.mark.parametrize(
    ("decoder", "has_leading_space"),
    [
        (decoders.Metaspace(), True),
        (decoders.Metaspace(prepend_scheme="never"), False),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), True),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]), True),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()]), False),
    ],
)
def test_the_leading_space_is_known(decoder: decoders.Decoder, has_leading_space: bool) -> None:
    spelling = spell_tokens(backend_of(["▁a", "b"], decoder))
    assert spelling == Spelling((b" a", b"b"), has_leading_space)


@pytest.mark.parametrize(
    "decoder",
    [None, decoders.WordPiece(), decoders.CTC(), decoders.Sequence([decoders.Strip(" ", 1, 0)])],
)
def test_other_decoders_are_refused(decoder: decoders.Decoder | None) -> None:
    with pytest.raises(ModelFileError, match=r"decoder.*known are ByteLevel"):
        spell_tokens(backend_of(["a"], decoder))


def test_gaps_among_the_ids_spell_nothing() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 3}, []))
    backend.decoder = decoders.ByteLevel()
    assert spell_tokens(backend).pieces == (b"a", b"", b"", b"b")
