"""Tokenizers that several tests share, each built once."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tests.triolet.text.drive import Driver
from tests.triolet.text.samples import CORPUS, byte_level_metadata, train_byte_level

from triolet.models.source import local_files
from triolet.text.gguf_tokenizer import gguf_tokenizer
from triolet.text.grammar import GrammarCompiler
from triolet.text.pre_tokenizers import pre_tokenizer
from triolet.text.sentencepiece_model import sentencepiece_metadata
from triolet.text.tokenizer import Tokenizer, load_tokenizer

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    """The default model's tokenizer."""
    return load_tokenizer(local_files(smollm2_path))


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """A small byte-level BPE tokenizer with special tokens."""
    trained = train_byte_level(pre_tokenizer("smollm").build(), specials=SPECIALS)
    return Tokenizer(gguf_tokenizer(byte_level_metadata(trained, "smollm")))


@pytest.fixture(scope="session")
def train_sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that trains a SentencePiece model and gives its file."""

    def train(**options: Any) -> Path:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 10), model_writer=model, minloglevel=2, **options
        )
        path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
        path.write_bytes(model.getvalue())
        return path

    return train


@pytest.fixture(scope="session")
def sentencepiece_bpe(train_sentencepiece: Callable[..., Path]) -> Path:
    """A SentencePiece BPE model like Llama 2's: a leading space, byte tokens, nothing normalised."""
    return train_sentencepiece(
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )


@pytest.fixture(scope="session")
def leading_space(sentencepiece_bpe: Path) -> Tokenizer:
    """The tokenizer made from :func:`sentencepiece_bpe`."""
    return Tokenizer(gguf_tokenizer(sentencepiece_metadata(sentencepiece_bpe, {})))


@pytest.fixture(scope="session")
def smollm2_compiler(smollm2: Tokenizer) -> GrammarCompiler:
    """Compiles grammars for the default model."""
    return GrammarCompiler(smollm2, smollm2.vocab_size)


@pytest.fixture(scope="session")
def smollm2_driver(smollm2: Tokenizer) -> Driver:
    """Writes what grammars allow, in the default model's tokens."""
    return Driver(smollm2)
