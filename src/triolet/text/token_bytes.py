"""What each token spells, as bytes: the table behind decoding, whole and incremental.

A ``tokenizers`` decoder works on lists of token strings. The decoders of causal language models all
reduce to "join the bytes of the tokens, read them as UTF-8", plus at most one leading space dropped, so
the bytes are worked out once per token and no decoder runs afterwards.

This module knows neither files nor requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from triolet.errors import ModelFileError

__all__ = ["Spelling", "spell_tokens"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_KNOWN_DECODERS = "ByteLevel, Metaspace, or a sequence of Replace, ByteFallback, Fuse and Strip"


@dataclass(frozen=True, slots=True)
class Spelling:
    """``pieces[i]`` is what token ``i`` spells; ``has_leading_space``: a text has one before it."""

    pieces: tuple[bytes, ...]
    has_leading_space: bool


@dataclass(frozen=True, slots=True)
class _Rules:
    """How a token string becomes bytes."""

    is_byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    has_byte_tokens: bool = False
    has_leading_space: bool = False


def spell_tokens(backend: tokenizers.Tokenizer) -> Spelling:
    """The bytes of every token of ``backend``, by its decoder's rules; gaps among the ids spell nothing.

    Raises :class:`ModelFileError` if the decoder is of an unknown kind.
    """
    rules = _rules_of(backend)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
    spell = _byte_level_speller() if rules.is_byte_level else _text_speller(rules)
    for token, token_id in vocabulary.items():
        pieces[token_id] = spell(token)
    return Spelling(tuple(pieces), rules.has_leading_space)


def _byte_level_speller() -> Any:
    """Byte-level BPE: each character of a token stands for one byte (GPT-2's table).

    A token with any other character in it (an added token) spells itself.
    """
    table: dict[int, str] = dict.fromkeys(range(256), "\uffff")
    table.update((ord(character), chr(byte)) for byte, character in _byte_alphabet().items())

    def spell(token: str) -> bytes:
        try:
            return token.translate(table).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return spell


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte.

    Bytes that are printable in Latin-1 stand for themselves; the others take the characters from U+0100
    on, in order (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    alphabet.update((byte, chr(0x100 + index)) for index, byte in enumerate(others))
    assert set(alphabet.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return alphabet


def _text_speller(rules: _Rules) -> Any:
    def spell(token: str) -> bytes:
        for old, new in rules.replacements:
            token = token.replace(old, new)
        if rules.has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()

    return spell


def _rules_of(backend: tokenizers.Tokenizer) -> _Rules:
    if backend.decoder is None:
        raise ModelFileError(f"the tokenizer has no decoder; known are {_KNOWN_DECODERS}")
    decoder: Mapping[str, Any] = json.loads(backend.decoder.__getstate__())
    is_sequence = decoder["type"] == "Sequence"
    steps: Sequence[Mapping[str, Any]] = decoder["decoders"] if is_sequence else [decoder]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _Rules(is_byte_level=True)
    return _text_rules(steps)


def _text_rules(steps: Sequence[Mapping[str, Any]]) -> _Rules:
    replacements: list[tuple[str, str]] = []
    has_byte_tokens = has_leading_space = is_fused = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replacements.append((old, new))
            case {"type": "ByteFallback"}:
                has_byte_tokens = True
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0} if is_fused:
                has_leading_space = True
            case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": scheme}:
                replacements.append((mark, " "))
                has_leading_space = scheme != "never"
            case _:
                raise ModelFileError(
                    f"the tokenizer's decoder has a step that is not known here: {dict(step)}; "
                    f"known are {_KNOWN_DECODERS}"
                )
    return _Rules(False, tuple(replacements), has_byte_tokens, has_leading_space)
