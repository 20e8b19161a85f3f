"""Hugging Face directories give the tokenizer that ``transformers`` gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.triolet.text.conftest import SPECIALS
from tests.triolet.text.samples import sample_texts, train_byte_level
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from triolet.errors import ModelFileError
from triolet.models.source import ModelFiles
from triolet.text.huggingface_tokenizer import read_huggingface_tokenizer
from triolet.text.tokenizer import Tokenizer, load_tokenizer

WriteModel = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteModel:
    """Write a directory: ``tokenizer.json`` of a backend, and objects or text by the stem of their file."""

    def write(backend: tokenizers.Tokenizer | None, **files: Any) -> Path:
        if backend is not None:
            backend.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            if isinstance(content, str):
                (tmp_path / f"{name}.jinja").write_text(content, encoding="utf-8")
            else:
                (tmp_path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return tmp_path

    return write


def byte_level_backend() -> tokenizers.Tokenizer:
    return train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), specials=SPECIALS)


def small_backend(*added: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1, "<s>": 2, "</s>": 3, "<|eot_id|>": 4}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in added])
    return backend


def test_it_equals_transformers(write: WriteModel) -> None:
    from transformers import PreTrainedTokenizerFast

    backend = byte_level_backend()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", backend.token_to_id("<|im_start|>"))]
    )
    original = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<tool>"],
    )
    directory = write(None)
    original.save_pretrained(str(directory))
    original = PreTrainedTokenizerFast.from_pretrained(str(directory))
    tokenizer = load_tokenizer(ModelFiles(directory, "huggingface", ()))
    assert tokenizer.special_token_ids == set(original.all_special_ids) | {
        backend.token_to_id("<|endoftext|>")
    }
    for text in sample_texts(specials=(*SPECIALS, "<tool>")):
        for add in (True, False):
            token_ids = tokenizer.encode(text, add_special_tokens=add)
            assert token_ids == original.encode(text, add_special_tokens=add), text
        for skip in (True, False):
            expected = original.decode(
                token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert tokenizer.decode(token_ids, skip_special_tokens=skip) == expected


def test_a_llama_2_tokenizer_equals_transformers(write: WriteModel, sentencepiece_bpe: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    from triolet.text.gguf_tokenizer import gguf_tokenizer
    from triolet.text.sentencepiece_model import sentencepiece_metadata

    backend = gguf_tokenizer(sentencepiece_metadata(sentencepiece_bpe, {})).backend
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    directory = write(backend, tokenizer_config={"bos_token": "<s>", "eos_token": {"content": "</s>"}})
    tokenizer = Tokenizer(read_huggingface_tokenizer(directory))
    original = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    for text in sample_texts(specials=("<s>", "</s>")):
        token_ids = tokenizer.encode(text)
        assert token_ids == original.encode(text), text
        expected = original.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(token_ids) == expected


def test_all_ends_of_a_generation_are_found(write: WriteModel) -> None:
    backend = small_backend()
    backend.add_special_tokens(["<s>", "</s>", "<|eot_id|>"])
    directory = write(
        backend,
        tokenizer_config={"eos_token": "</s>"},
        generation_config={"eos_token_id": [0, 1]},
        config={"eos_token_id": 1},
        chat_template="{{ messages[0].content }}<|eot_id|>",
    )
    parts = read_huggingface_tokenizer(directory)
    assert parts.eos_token_id == 3
    assert parts.end_token_ids == {0, 1, 3, 4}
    assert parts.bos_token_id is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template": "file", "tokenizer_config": {"chat_template": "config"}}, "file"),
        ({"tokenizer_config": {"chat_template": "config"}}, "config"),
        (
            {"tokenizer_config": {"chat_template": [
                {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"},
            ]}},
            "plain",
        ),
        ({}, None),
    ],
)  # fmt: skip
def test_the_chat_template_may_be_in_several_places(
    write: WriteModel, files: dict[str, Any], expected: str | None
) -> None:
    assert read_huggingface_tokenizer(write(small_backend(), **files)).chat_template == expected


def test_a_template_in_a_file_of_its_own_in_json(write: WriteModel) -> None:
    directory = write(small_backend())
    (directory / "chat_template.json").write_text('{"chat_template": "x"}')
    assert read_huggingface_tokenizer(directory).chat_template == "x"


def test_tokens_of_the_configuration_are_added_and_marked(write: WriteModel) -> None:
    config = {
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "additional_special_tokens": ["<tool>"],
        "added_tokens_decoder": {
            "5": {"content": "<tool>", "special": False, "normalized": False},
            "6": {"content": "<pad>", "special": True},
        },
    }
    tokenizer = Tokenizer(read_huggingface_tokenizer(write(small_backend("<tool>"), tokenizer_config=config)))
    assert tokenizer.special_token_ids == {2, 5, 6}
    assert tokenizer.vocab_size == 7
    assert tokenizer.encode("a<pad><tool><s>b") == [0, 6, 5, 2, 1]


def test_ids_that_do_not_fit_together_are_refused(write: WriteModel) -> None:
    config = {"added_tokens_decoder": {"99": {"content": "<far>", "special": True}}}
    with pytest.raises(ModelFileError, match=r"'<far>' the id 99, tokenizer.json makes it 5"):
        read_huggingface_tokenizer(write(small_backend(), tokenizer_config=config))


def test_padding_and_truncation_are_switched_off(write: WriteModel) -> None:
    backend = small_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert Tokenizer(read_huggingface_tokenizer(write(backend))).encode("ababa") == [0, 1, 0, 1, 0]


def test_a_sentencepiece_model_alone_will_do(
    write: WriteModel, sentencepiece_bpe: Path, leading_space: Tokenizer
) -> None:
    directory = write(None, tokenizer_config={"eos_token": "</s>", "add_eos_token": True})
    (directory / "tokenizer.model").write_bytes(sentencepiece_bpe.read_bytes())
    tokenizer = Tokenizer(read_huggingface_tokenizer(directory))
    assert tokenizer.encode("a dog") == [*leading_space.encode("a dog"), tokenizer.eos_token_id]
    assert tokenizer.eos_token_ids == {2}


def test_a_directory_without_a_tokenizer_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(
        ModelFileError, match=r"neither tokenizer.json nor tokenizer.model; add the tokenizer"
    ):
        read_huggingface_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"model": 1}', "[]", '{"version": "1.0"}'])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFileError, match=r"tokenizer.json: is not a usable tokenizer"):
        read_huggingface_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, '{"a": '])
def test_a_broken_configuration_is_refused(write: WriteModel, content: str) -> None:
    directory = write(small_backend())
    (directory / "tokenizer_config.json").write_text(content)
    with pytest.raises(
        ModelFileError, match=r"tokenizer_config.json: (is not valid JSON|must hold an object)"
    ):
        read_huggingface_tokenizer(directory)


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"x": {"content": "<y>"}}},
        {"added_tokens_decoder": {"5": {}}},
        {"added_tokens_decoder": {"5": {"content": 5}}},
        {"added_tokens_decoder": {"5": 5}},
        {"additional_special_tokens": 5},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": ["text"]},
    ],
    ids=str,
)
def test_a_configuration_of_another_form_is_refused(write: WriteModel, config: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match="must have"):
        read_huggingface_tokenizer(write(small_backend(), tokenizer_config=config))


def test_a_template_that_is_not_unicode_is_refused(write: WriteModel) -> None:
    directory = write(small_backend())
    (directory / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelFileError, match="must have"):
        read_huggingface_tokenizer(directory)
