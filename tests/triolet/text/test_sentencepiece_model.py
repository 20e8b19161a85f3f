"""SentencePiece files are read field by field, and broken ones refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.errors import ModelFileError
from triolet.text.sentencepiece_model import sentencepiece_metadata


def test_every_piece_is_as_sentencepiece_says(sentencepiece_bpe: Path) -> None:
    original = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_bpe))
    metadata = sentencepiece_metadata(sentencepiece_bpe, {"add_bos_token": False, "add_eos_token": None})
    size = original.get_piece_size()
    assert metadata["tokenizer.ggml.model"] == "llama"
    assert metadata["tokenizer.ggml.tokens"] == [original.id_to_piece(i) for i in range(size)]
    assert metadata["tokenizer.ggml.scores"] == [original.get_score(i) for i in range(size)]
    assert metadata["tokenizer.ggml.unknown_token_id"] == original.unk_id()
    assert metadata["tokenizer.ggml.bos_token_id"] == original.bos_id()
    assert metadata["tokenizer.ggml.eos_token_id"] == original.eos_id()
    assert metadata["tokenizer.ggml.add_space_prefix"] is True
    assert metadata["tokenizer.ggml.remove_extra_whitespaces"] is False
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert "tokenizer.ggml.add_eos_token" not in metadata


def test_unigram_and_its_normalizer(train_sentencepiece: Callable[..., Path]) -> None:
    path = train_sentencepiece(model_type="unigram", vocab_size=300, hard_vocab_limit=False, bos_id=-1)
    metadata = sentencepiece_metadata(path, {})
    assert metadata["tokenizer.ggml.model"] == "t5"
    assert metadata["tokenizer.ggml.remove_extra_whitespaces"] is True
    assert metadata["tokenizer.ggml.precompiled_charsmap"]
    assert "tokenizer.ggml.bos_token_id" not in metadata


def test_other_kinds_are_refused(train_sentencepiece: Callable[..., Path]) -> None:
    path = train_sentencepiece(model_type="char", vocab_size=100, hard_vocab_limit=False)
    with pytest.raises(ModelFileError, match=r"neither BPE nor Unigram\); add the tokenizer.json"):
        sentencepiece_metadata(path, {})


@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_broken_files_raise_nothing_but_a_model_file_error(
    sentencepiece_bpe: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(sentencepiece_bpe.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "broken.model"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(ModelFileError):
        sentencepiece_metadata(path, {})
