"""The marks by which models fill a gap, found in vocabularies."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from triolet.text.fill_in_middle import MIDDLE_FORMATS, MiddleFormat, find_middle_format, middle_end_token_ids
from triolet.text.tokenizer import Tokenizer as OurTokenizer
from triolet.text.tokenizer_parts import TokenizerParts


def tokenizer(*special: str) -> OurTokenizer:
    """One token for each byte, and the special ones from 256 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    return OurTokenizer(
        TokenizerParts(
            backend=backend,
            bos_token_id=None,
            eos_token_id=None,
            end_token_ids=frozenset(),
            chat_template=None,
        )
    )


@pytest.mark.parametrize("known", MIDDLE_FORMATS, ids=lambda known: known.prefix)
def test_a_gap_becomes_three_tokens_around_two_texts(known: MiddleFormat) -> None:
    vocabulary = tokenizer(*known.marks)
    assert find_middle_format(vocabulary) == known
    token_ids = vocabulary.encode(known.prompt("def f(", "  return 1"))
    assert [token_id for token_id in token_ids if token_id >= 256] == [256, 257, 258]
    assert vocabulary.decode(token_ids, skip_special_tokens=False) == known.prompt("def f(", "  return 1")
    assert vocabulary.decode(token_ids) == "def f(  return 1"


def test_a_model_without_all_three_has_none() -> None:
    assert find_middle_format(tokenizer()) is None
    assert find_middle_format(tokenizer("<|fim_prefix|>", "<|fim_suffix|>")) is None


def test_what_ends_a_middle_are_the_tokens_that_there_are() -> None:
    assert middle_end_token_ids(tokenizer("<x>", "<|fim_pad|>", "<|endoftext|>")) == (258, 257)
    assert middle_end_token_ids(tokenizer()) == ()
