"""A SentencePiece ``tokenizer.model`` as the metadata a GGUF file would hold for it.

The file is a protocol buffer (``sentencepiece_model.proto``); only the few fields that matter are read.
This module knows neither how a tokenizer is built nor anything of the model.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triolet.errors import ModelFileError

__all__ = ["sentencepiece_metadata"]

_UNIGRAM, _BPE = 1, 2
_KINDS = {_UNIGRAM: "t5", _BPE: "llama"}

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_NORMAL, _USER_DEFINED = 1, 4
_MODEL_TYPE, _UNKNOWN_ID, _BOS_ID, _EOS_ID = 3, 40, 41, 42
_CHARSMAP, _HAS_DUMMY_PREFIX, _REMOVES_SPACES = 2, 3, 4


def sentencepiece_metadata(path: Path, config: Mapping[str, Any]) -> dict[str, object]:
    """``tokenizer.ggml.*`` of a SentencePiece model; ``config`` is ``tokenizer_config.json``.

    Raises :class:`ModelFileError` if the file is malformed or its kind is neither BPE nor Unigram.
    """
    try:
        fields = list(_fields(path.read_bytes()))
        metadata = _metadata(fields)
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as error:
        raise ModelFileError(
            f"{path}: is not a SentencePiece model ({error}); add the tokenizer.json of the model"
        ) from error
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(config.get(name), bool):
            metadata[f"tokenizer.ggml.{name}"] = config[name]
    return metadata


def _metadata(fields: list[tuple[int, Any]]) -> dict[str, object]:
    pieces = [dict(_fields(value)) for number, value in fields if number == _PIECES]
    trainer = _submessage(fields, _TRAINER)
    normalizer = _submessage(fields, _NORMALIZER)
    kind = trainer.get(_MODEL_TYPE, _UNIGRAM)
    if kind not in _KINDS:
        raise ValueError("it is neither BPE nor Unigram")
    return {
        "tokenizer.ggml.model": _KINDS[kind],
        "tokenizer.ggml.tokens": [_text(piece) for piece in pieces],
        "tokenizer.ggml.scores": [_float(piece.get(_PIECE_SCORE, b"\0\0\0\0")) for piece in pieces],
        "tokenizer.ggml.token_type": [piece.get(_PIECE_TYPE, _NORMAL) for piece in pieces],
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(_HAS_DUMMY_PREFIX, 1)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.get(_REMOVES_SPACES, 1)),
        "tokenizer.ggml.precompiled_charsmap": list(normalizer.get(_CHARSMAP, b"")),
        **_special_ids(trainer, len(pieces)),
    }


def _text(piece: Mapping[int, Any]) -> str:
    """The piece; one that is looked for in the text itself is written with plain spaces."""
    text: str = piece[_PIECE_TEXT].decode()
    return text.replace("\u2581", " ") if piece.get(_PIECE_TYPE) == _USER_DEFINED else text


def _special_ids(trainer: Mapping[int, Any], num_pieces: int) -> dict[str, object]:
    """Ids of the special tokens; -1, as 64 bits, says there is none."""
    defaults = {
        "unknown_token_id": (_UNKNOWN_ID, 0),
        "bos_token_id": (_BOS_ID, 1),
        "eos_token_id": (_EOS_ID, 2),
    }
    ids = {name: trainer.get(number, default) for name, (number, default) in defaults.items()}
    return {f"tokenizer.ggml.{name}": value for name, value in ids.items() if value < num_pieces}


def _submessage(fields: list[tuple[int, Any]], wanted: int) -> dict[int, Any]:
    return {k: v for number, value in fields if number == wanted for k, v in _fields(value)}


def _float(data: bytes) -> float:
    return float(struct.unpack("<f", data)[0])


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of a message: ints for varints, bytes for all else."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == 2:
            size, position = _varint(data, position)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if position + size > len(data):
            raise ValueError("it is cut off")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
