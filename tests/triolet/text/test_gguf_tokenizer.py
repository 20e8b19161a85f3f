"""Tokenizers from GGUF metadata equal the Hugging Face tokenizers they were written from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tests.triolet.text.conftest import SPECIALS
from tests.triolet.text.samples import byte_level_metadata, sample_texts, train_byte_level
from tests.triolet.text.test_pre_tokenizers import REFERENCES
from tokenizers import normalizers, pre_tokenizers

from triolet.errors import ModelFileError
from triolet.text.gguf_tokenizer import TokenType, gguf_tokenizer
from triolet.text.sentencepiece_model import sentencepiece_metadata
from triolet.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROLS = ("<s>", "</s>", "<unk>", "<pad>")


def small_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary of five tokens."""
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "<bos>", "<eos>"],
        "token_type": [1, 1, 1, 3, 3],
        "merges": ["a b"],
        "bos_token_id": 3,
        "eos_token_id": 4,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def scored_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece vocabulary: bytes, a few letters and words, one user-defined token."""
    words = ["▁", "a", "b", "c", "ab", "bc", "abc", "▁a", "[tool]", "▁unused"]
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *words]
    types = [2, 3, 3, *[6] * 256, *[1] * 8, 4, 5]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": types,
        "scores": [0.0] * 259 + [-10.0, -11.0, -12.0, -13.0, -2.0, -1.0, -3.0, -4.0, 0.0, 0.0],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def pieces(tokenizer: Tokenizer, text: str, **options: Any) -> list[str | None]:
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text, **options)]


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_byte_level_equals_its_hugging_face_original(name: str) -> None:
    original = train_byte_level(
        REFERENCES[name],
        normalizer=normalizers.NFC() if name == "qwen2" else None,
        specials=SPECIALS,
        ignore_merges=name in ("llama-bpe", "tekken"),
    )
    tokenizer = Tokenizer(gguf_tokenizer(byte_level_metadata(original, name)))
    for text in sample_texts(specials=SPECIALS):
        token_ids = tokenizer.encode(text)
        assert token_ids == original.encode(text).ids, text
        for skip in (True, False):
            decoded = tokenizer.decode(token_ids, skip_special_tokens=skip)
            assert decoded == original.decode(token_ids, skip_special_tokens=skip), text


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_equals_its_hugging_face_tokenizer(smollm2: Tokenizer, smollm2_path: Path) -> None:
    from transformers import AutoTokenizer

    original = AutoTokenizer.from_pretrained(str(smollm2_path.parent), gguf_file=smollm2_path.name)
    backend: tokenizers.Tokenizer = original.backend_tokenizer
    # What the model's tokenizer.json has and transformers does not take from a GGUF file.
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    specials = tuple(smollm2.id_to_token(i) or "" for i in sorted(smollm2.special_token_ids))
    assert len(specials) == 17
    for text in sample_texts(1_000, specials=specials):
        token_ids = smollm2.encode(text)
        assert token_ids == original.encode(text, add_special_tokens=False), text
        for skip in (True, False):
            expected = original.decode(
                token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert smollm2.decode(token_ids, skip_special_tokens=skip) == expected, text


@pytest.mark.model
def test_smollm2_s_special_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49_152
    assert (smollm2.bos_token, smollm2.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert smollm2.eos_token_ids == {2}
    assert smollm2.encode("hi", add_special_tokens=True) == smollm2.encode("hi", add_special_tokens=False)
    assert smollm2.chat_template is not None


@pytest.mark.parametrize("has_prefix", [True, False])
def test_sentencepiece_bpe_equals_sentencepiece(
    train_sentencepiece: Callable[..., Path], has_prefix: bool
) -> None:
    # With a leading space, SentencePiece puts none after a user-defined piece; GGUF readers do.
    user_defined = {} if has_prefix else {"user_defined_symbols": ["[tool]", "\n\n", "▁▁", "▁▁▁"]}
    path = train_sentencepiece(
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=has_prefix,
        **user_defined,
    )
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = Tokenizer(gguf_tokenizer(sentencepiece_metadata(path, {})))
    specials = () if has_prefix else ("[tool]", "\n\n", "    ")
    for text in sample_texts(specials=specials):
        if "\0" in text or any(token in text for token in CONTROLS):
            continue  # SentencePiece never finds control tokens in a text
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert token_ids == original.encode(text), text
        assert tokenizer.decode(token_ids) == original.decode(token_ids), text


def test_unigram_equals_sentencepiece(train_sentencepiece: Callable[..., Path]) -> None:
    path = train_sentencepiece(
        model_type="unigram", vocab_size=430, byte_fallback=True, character_coverage=0.98
    )
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = Tokenizer(gguf_tokenizer(sentencepiece_metadata(path, {})))
    differing = 0
    for text in sample_texts():
        if "\0" in text or any(token in text for token in (*CONTROLS, "<0x0A>")):
            continue
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        differing += token_ids != original.encode(text)
    # The tokenizers library normalises combining marks by whole clusters, SentencePiece by characters.
    assert differing <= 10


def test_scores_say_what_merges_first() -> None:
    tokenizer = Tokenizer(gguf_tokenizer(scored_metadata(add_space_prefix=False, add_bos_token=False)))
    assert pieces(tokenizer, "abc") == ["abc"]  # "bc" is best, then "a" + "bc"
    assert pieces(tokenizer, "aab") == ["a", "ab"]
    assert pieces(tokenizer, "é\n") == ["<0xC3>", "<0xA9>", "<0x0A>"]
    assert pieces(tokenizer, "a[tool]b") == ["a", "[tool]", "b"]
    assert pieces(tokenizer, " unused")[0] == "▁"


def test_a_leading_space_is_put_in_and_dropped_again() -> None:
    tokenizer = Tokenizer(gguf_tokenizer(scored_metadata()))
    assert pieces(tokenizer, "abc") == ["<s>", "▁", "abc"]
    assert pieces(tokenizer, "a") == ["<s>", "▁a"]
    assert pieces(tokenizer, "") == ["<s>"]
    assert tokenizer.decode(tokenizer.encode(" a b ")) == " a b "
    assert pieces(tokenizer, "</s>a") == ["<s>", "</s>", "▁a"]


def test_flags_put_tokens_around_a_text() -> None:
    def around(**changes: Any) -> list[str | None]:
        return pieces(Tokenizer(gguf_tokenizer(small_metadata(**changes))), "ab")

    assert around() == ["ab"]
    assert around(add_bos_token=True, add_eos_token=True) == ["<bos>", "ab", "<eos>"]
    assert around(pre="llama-bpe") == ["<bos>", "ab"]
    assert around(pre="llama-bpe", add_bos_token=False) == ["ab"]
    assert around(add_bos_token=True, bos_token_id=None) == ["ab"]
    odd = {"tokens": ["a", "b", "ab", "$A:1 <x>", "<eos>"], "add_bos_token": True}
    assert around(**odd) == ["$A:1 <x>", "ab"]


def test_t5_s_defaults_are_an_end_token_and_no_beginning() -> None:
    metadata = scored_metadata(model="t5", add_space_prefix=True)
    assert pieces(Tokenizer(gguf_tokenizer(metadata)), "a") == ["▁a", "</s>"]


def test_all_ends_of_a_generation_are_known() -> None:
    tokens = ["a", "<eos>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>"]
    metadata = small_metadata(
        tokens=tokens, token_type=[1, 3, 3, 3, 3, 1], merges=[], bos_token_id=None, eos_token_id=1,
        eot_token_id=2, eom_token_id=3,
    )  # fmt: skip
    metadata["tokenizer.chat_template"] = "{{ '<|im_end|>' }}{{ '<end_of_turn>' }}"
    tokenizer = Tokenizer(gguf_tokenizer(metadata))
    assert tokenizer.eos_token_ids == {1, 2, 3, 4}  # the last is no control token of this model
    assert tokenizer.bos_token_id is None
    assert tokenizer.bos_token is None


def test_token_types_say_what_is_special() -> None:
    tokenizer = Tokenizer(gguf_tokenizer(scored_metadata()))
    assert tokenizer.special_token_ids == {0, 1, 2}
    tool = scored_metadata()["tokenizer.ggml.tokens"].index("[tool]")
    assert tokenizer.decode([1, tool, 2], skip_special_tokens=True) == "[tool]"
    assert tokenizer.decode([1, tool, 2], skip_special_tokens=False) == "<s>[tool]</s>"


def test_arrays_may_be_numpy_s() -> None:
    metadata = scored_metadata()
    plain = Tokenizer(gguf_tokenizer(metadata))
    metadata["tokenizer.ggml.scores"] = np.array(metadata["tokenizer.ggml.scores"], dtype=np.float32)
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], dtype=np.int32)
    assert Tokenizer(gguf_tokenizer(metadata)).encode("abc bca") == plain.encode("abc bca")


def test_the_token_types_are_the_format_s() -> None:
    assert [kind.name for kind in TokenType] == [
        "NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'; known are gpt2, llama, t5"),
        ({"model": None}, "tokenizer.ggml.model is ''"),
        ({"pre": "klingon"}, "'klingon'.*known are .*llama-bpe"),
        ({"tokens": None}, "tokens must be a list of str"),
        ({"tokens": [], "token_type": []}, "tokens is empty"),
        ({"tokens": ["a", "a", "ab", "<bos>", "<eos>"]}, "has tokens twice"),
        ({"tokens": [1, 2, 3, 4, 5]}, "tokens must be a list of str"),
        ({"token_type": [1]}, "token_type has 1 entries for 5 tokens"),
        ({"merges": ["ab"]}, "'ab', which is not two tokens"),
        ({"merges": ["a z"]}, "not usable"),
        ({"merges": None}, "merges must be a list"),
        ({"eos_token_id": 5}, "eos_token_id is 5, outside the vocabulary"),
        ({"bos_token_id": -1}, "bos_token_id is -1, outside the vocabulary"),
        ({"bos_token_id": "x"}, "bos_token_id must be of type int"),
        ({"add_bos_token": 1}, "add_bos_token must be of type bool"),
        ({"model": "llama"}, "scores must be a list of float"),
        ({"model": "llama", "scores": [0.0]}, "scores has 1 entries"),
        ({"model": "t5", "scores": [0.0] * 5, "unknown_token_id": None}, "unknown_token_id is missing"),
    ],
)
def test_unusable_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    if changes.get("model") == "llama":
        changes = {**changes, "merges": None}
    with pytest.raises(ModelFileError, match=message):
        gguf_tokenizer(small_metadata(**changes))


def test_a_token_of_megabytes_is_refused_by_name() -> None:
    tokens = ["<unk>", *BYTES, "a" * 5_000_000]
    with pytest.raises(ModelFileError, match=r"tokens\[257\], 'a{20}'…, has 5,000,000 characters"):
        gguf_tokenizer(scored_metadata(tokens=tokens, token_type=None, scores=[0.0] * len(tokens)))


def test_many_long_tokens_are_refused_before_merges_are_made_of_them() -> None:
    tokens = ["<unk>", *(f"{i:01000}" for i in range(200))]
    with pytest.raises(ModelFileError, match="too many long tokens"):
        gguf_tokenizer(scored_metadata(tokens=tokens, token_type=None, scores=[0.0] * len(tokens)))
