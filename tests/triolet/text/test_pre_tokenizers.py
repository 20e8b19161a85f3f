"""The named splitters cut as the models' own ``tokenizer.json`` files do."""

from __future__ import annotations

import time
import unicodedata

import pytest
from tests.triolet.text.samples import byte_level_metadata, sample_texts, train_byte_level
from tokenizers import Regex, pre_tokenizers

from triolet.errors import ModelFileError
from triolet.text.gguf_tokenizer import gguf_tokenizer
from triolet.text.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer
from triolet.text.tokenizer import Tokenizer

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLAIN = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
REFERENCES = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), PLAIN]),
    "qwen2": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), PLAIN]
    ),
    "tekken": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TEKKEN), "isolated"), PLAIN]),
}
"""Written down from the ``tokenizer.json`` of GPT-2, SmolLM2, Llama 3, Qwen2 and Mistral Nemo."""


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_words_are_those_of_the_model_s_own_splitter(name: str) -> None:
    ours, theirs = pre_tokenizer(name).build(), REFERENCES[name]
    for text in sample_texts():
        assert words(ours, text) == words(theirs, text), text


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_splitter_keeps_all_of_the_text(name: str) -> None:
    splitter = pre_tokenizer(name)
    trained = train_byte_level(splitter.build(), normalizer=splitter.normalizer(), vocab_size=400)
    tokenizer = Tokenizer(gguf_tokenizer(byte_level_metadata(trained, name)))
    for text in sample_texts(600):
        expected = unicodedata.normalize("NFC", text) if splitter.is_composed else text
        assert tokenizer.decode(tokenizer.encode(text)) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("llama-bpe", "we'LL pay 12345", ["we", "'LL", " pay", " ", "123", "45"]),
        ("qwen2", "we'LL pay 12", ["we", "'LL", " pay", " ", "1", "2"]),
        ("smollm", "a 12", ["a", " ", "1", "2"]),
        ("gpt-2", "a 12\n\nb", ["a", " 12", "\n", "\n", "b"]),
        ("tekken", "camelCase HTTPServer 12", ["camel", "Case", " HTTPServer", " ", "1", "2"]),
        ("deepseek-llm", "a 12  \nb你好 ", ["a", " ", "12", "  ", "\n", "b", "你好", " "]),
        ("deepseek-v3", "a 1234 你好b", ["a", " ", "123", "4", " ", "你好", "b"]),
        ("default", "a++ 12345", ["a", "++", " ", "123", "45"]),
    ],
)
def test_words_of_a_line(name: str, text: str, expected: list[str]) -> None:
    pieces = pre_tokenizer(name).build().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == expected


def test_deepseek_s_letters_are_all_cased_ones() -> None:
    from triolet.text import pre_tokenizers as module

    ranges = module._CASED_LETTERS
    letters: set[str] = set()
    for i, character in enumerate(ranges):
        if character == "-":
            letters |= {chr(c) for c in range(ord(ranges[i - 1]), ord(ranges[i + 1]) + 1)}
        else:
            letters.add(character)
    assert {unicodedata.category(letter) for letter in letters} <= {"Ll", "Lu", "Lt", "Cn"}


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match=r"'klingon'.*llama-bpe.*qwen2.*smollm"):
        pre_tokenizer("klingon")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
@pytest.mark.parametrize("text", [" " * 100_000 + "x", "a" * 100_000, "\n" * 100_000 + "x", "A1'" * 30_000])
def test_hard_texts_are_cut_in_linear_time(name: str, text: str) -> None:
    started = time.thread_time()
    pre_tokenizer(name).build().pre_tokenize_str(text)
    assert time.thread_time() - started < 5


def words(splitter: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [word for word, _ in splitter.pre_tokenize_str(text)]
