"""A tokenizer from the metadata of a GGUF file: byte-level BPE, SentencePiece BPE, Unigram.

Keys and token types are those of the GGUF specification (``tokenizer.ggml.*``). The metadata comes in as
a mapping; reading the file is not done here, and nothing of the model but its tokenizer is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from triolet.errors import ModelFileError
from triolet.models.gguf import GGUFFile
from triolet.text.pre_tokenizers import pre_tokenizer
from triolet.text.tokenizer_parts import TokenizerParts, end_of_turn_ids

__all__ = ["TokenType", "gguf_tokenizer", "read_gguf_tokenizer"]

_SPACE = "\u2581"
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_MAX_TOKEN_CHARACTERS = 1_024
"""Longest token; the longest of known models has about 130 characters."""
_MAX_MERGE_WORK = 2**27
"""Sum of the squares of the tokens' lengths, of which merges are made; known models have up to 2**25."""
_T = TypeVar("_T")


class TokenType(IntEnum):
    """What a token of the vocabulary is (the same numbers as in SentencePiece)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]

    def of_type(self, *types: TokenType) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def read_gguf_tokenizer(path: Path) -> TokenizerParts:
    """The tokenizer in a GGUF file; raises :class:`ModelFileError` as :func:`gguf_tokenizer` does."""
    with GGUFFile(path) as file:
        return gguf_tokenizer(file.metadata)


def gguf_tokenizer(metadata: Mapping[str, object]) -> TokenizerParts:
    """The tokenizer that ``metadata`` describes.

    Raises :class:`ModelFileError` if the metadata is not consistent, or of a kind not known here.
    """
    kind = _value(metadata, "model", str, "")
    build = _BUILDERS.get(kind)
    if build is None:
        raise ModelFileError(f"tokenizer.ggml.model is {kind!r}; known are {', '.join(sorted(_BUILDERS))}")
    vocabulary = _vocabulary(metadata)
    try:
        backend = build(metadata, vocabulary)
    except ModelFileError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelFileError(f"the file's tokenizer is not usable: {error}") from error
    _add_tokens(backend, vocabulary)
    return _parts(metadata, vocabulary, backend)


def _parts(
    metadata: Mapping[str, object], vocabulary: _Vocabulary, backend: tokenizers.Tokenizer
) -> TokenizerParts:
    template = metadata.get("tokenizer.chat_template")
    chat_template = template if isinstance(template, str) else None
    ends = {_token_id(metadata, key, vocabulary) for key in _END_KEYS} - {None}
    return TokenizerParts(
        backend=backend,
        bos_token_id=_token_id(metadata, "bos_token_id", vocabulary),
        eos_token_id=_token_id(metadata, "eos_token_id", vocabulary),
        end_token_ids=frozenset(i for i in ends if i is not None) | end_of_turn_ids(backend, chat_template),
        chat_template=chat_template,
    )


def _byte_level_bpe(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    splitter = pre_tokenizer(_value(metadata, "pre", str, "default"))
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=_merges(metadata),
        ignore_merges=splitter.has_ignore_merges,
    )
    backend = tokenizers.Tokenizer(model)
    if (normalizer := splitter.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter.build()
    backend.decoder = decoders.ByteLevel()
    _surround(backend, metadata, vocabulary, has_bos=splitter.has_bos, has_eos=False)
    return backend


def _sentencepiece_bpe(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    has_merges = "tokenizer.ggml.merges" in metadata
    unknown = _unknown_id(metadata, vocabulary)
    model = models.BPE(
        vocab=vocabulary.ids,
        merges=_merges(metadata)
        if has_merges
        else _merges_of_scores(vocabulary, _scores(metadata, vocabulary)),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=bool(vocabulary.of_type(TokenType.BYTE)),
    )
    backend = tokenizers.Tokenizer(model)
    has_prefix = _value(metadata, "add_space_prefix", bool, True)
    prefix = [normalizers.Prepend(_SPACE)] if has_prefix else []
    backend.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    trim = [decoders.Strip(content=" ", left=1, right=0)] if has_prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *trim]
    )
    _surround(backend, metadata, vocabulary, has_bos=True, has_eos=False)
    return backend


def _unigram(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    has_bytes = bool(vocabulary.of_type(TokenType.BYTE))
    pieces = list(zip(vocabulary.tokens, _scores(metadata, vocabulary), strict=True))
    unknown = _unknown_id(metadata, vocabulary)
    if unknown is None:
        raise ModelFileError("tokenizer.ggml.unknown_token_id is missing, and no token is of that type")
    backend = tokenizers.Tokenizer(models.Unigram(pieces, unknown, has_bytes))
    steps: list[normalizers.Normalizer] = []
    if charsmap := metadata.get("tokenizer.ggml.precompiled_charsmap"):
        steps.append(normalizers.Precompiled(_bytes(charsmap)))
    if _value(metadata, "remove_extra_whitespaces", bool, False):
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if _value(metadata, "add_space_prefix", bool, True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    spaces = decoders.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if has_bytes else spaces
    _surround(backend, metadata, vocabulary, has_bos=False, has_eos=True)
    return backend


_BUILDERS = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe, "t5": _unigram}


def _surround(
    backend: tokenizers.Tokenizer,
    metadata: Mapping[str, object],
    vocabulary: _Vocabulary,
    *,
    has_bos: bool,
    has_eos: bool,
) -> None:
    """Let the backend put the tokens around a text; ``has_…`` counts where the file does not say."""
    template: list[tuple[str, int]] = []
    for name, default in (("bos", has_bos), ("eos", has_eos)):
        token_id = _token_id(metadata, f"{name}_token_id", vocabulary)
        if token_id is not None and _value(metadata, f"add_{name}_token", bool, default):
            template.append((name, token_id))
    if not template:
        return
    names = [name for name, _ in template]
    single = ["bos"] * ("bos" in names) + ["$A"] + ["eos"] * ("eos" in names)
    # The names in the template are ours: the tokens' own may hold characters it gives a meaning to.
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, token_id) for name, token_id in template]
    )


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary) -> None:
    """Make the tokens that are found in a text before anything else."""
    special = vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN)
    plain = vocabulary.of_type(TokenType.USER_DEFINED)
    backend.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([tokenizers.AddedToken(t, special=False, normalized=False) for t in plain])


def _merges_of_scores(vocabulary: _Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary stands for: every way to put a token together from two others.

    SentencePiece joins the neighbours whose joint token has the highest score, so that is their order.
    Raises :class:`ModelFileError` if the tokens are so long that this would take minutes.
    """
    ids = {t: i for t, i in vocabulary.ids.items() if vocabulary.types[i] == TokenType.NORMAL}
    if sum(len(token) ** 2 for token in ids) > _MAX_MERGE_WORK:
        raise ModelFileError("tokenizer.ggml.tokens has too many long tokens to make merges of their scores")
    return [
        (token[:cut], token[cut:])
        for token in sorted(ids, key=lambda token: (-scores[ids[token]], ids[token]))
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for merge in _list(metadata, "merges", str):
        left, _, right = merge.partition(" ")
        if not left or not right:
            raise ModelFileError(f"tokenizer.ggml.merges has {merge[:80]!r}, which is not two tokens")
        merges.append((left, right))
    return merges


def _vocabulary(metadata: Mapping[str, object]) -> _Vocabulary:
    tokens = _list(metadata, "tokens", str)
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    if not tokens or len(ids) != len(tokens):
        problem = "has tokens twice" if tokens else "is empty"
        raise ModelFileError(f"tokenizer.ggml.tokens {problem}")
    for token_id, token in enumerate(tokens):
        if len(token) > _MAX_TOKEN_CHARACTERS:
            raise ModelFileError(
                f"tokenizer.ggml.tokens[{token_id}], {token[:20]!r}…, has {len(token):,} characters, "
                f"more than {_MAX_TOKEN_CHARACTERS:,}"
            )
    types = [int(TokenType.NORMAL)] * len(tokens)
    if "tokenizer.ggml.token_type" in metadata:
        types = _list(metadata, "token_type", int)
    _check_length("token_type", types, tokens)
    return _Vocabulary(tokens, types, ids)


def _scores(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> list[float]:
    scores = _list(metadata, "scores", float)
    _check_length("scores", scores, vocabulary.tokens)
    return scores


def _check_length(key: str, values: Sequence[object], tokens: Sequence[str]) -> None:
    if len(values) != len(tokens):
        raise ModelFileError(f"tokenizer.ggml.{key} has {len(values):,} entries for {len(tokens):,} tokens")


def _token_id(metadata: Mapping[str, object], key: str, vocabulary: _Vocabulary) -> int | None:
    token_id: int | None = _value(metadata, key, int, None)
    if token_id is not None and not 0 <= token_id < len(vocabulary.tokens):
        raise ModelFileError(f"tokenizer.ggml.{key} is {token_id}, outside the vocabulary")
    return token_id


def _unknown_id(metadata: Mapping[str, object], vocabulary: _Vocabulary) -> int | None:
    token_id = _token_id(metadata, "unknown_token_id", vocabulary)
    if token_id is None and TokenType.UNKNOWN in vocabulary.types:
        return vocabulary.types.index(TokenType.UNKNOWN)
    return token_id


def _value(metadata: Mapping[str, object], key: str, kind: type[_T], default: Any) -> Any:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return default
    if not isinstance(value, kind):
        raise ModelFileError(f"tokenizer.ggml.{key} must be of type {kind.__name__}, got {value!r}")
    return value


def _list(metadata: Mapping[str, object], key: str, kind: type[_T]) -> list[_T]:
    values: Any = metadata.get(f"tokenizer.ggml.{key}")
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple) or not all(isinstance(value, kind) for value in values):
        raise ModelFileError(f"tokenizer.ggml.{key} must be a list of {kind.__name__}")
    return list(values)


def _bytes(values: Any) -> bytes:
    """Bytes from an array of signed or unsigned 8-bit numbers."""
    return bytes(value & 0xFF for value in values)
