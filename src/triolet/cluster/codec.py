"""Dataclasses as positional arrays of plain values, and back, by their type hints.

What a class needs is worked out once. Fields at the end that have their default are left out. Sequences of
more than ``MAX_SHORT`` numbers are packed into bytes, 8 for each, so that no array has to be long. What comes
in is checked against the hints, type for type; whatever is wrong with it raises WireError and nothing else.

This module knows no message and no stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Never, TypeVar, Union, get_args, get_origin, get_type_hints

from triolet.cluster.frames import WireError
from triolet.cluster.packing import MAX_ARRAY, MAX_MAP, check_plain
from triolet.errors import TrioletError

__all__ = [
    "Decoder",
    "Encoder",
    "dataclass_decoder",
    "dataclass_encoder",
    "decoder_of",
    "encoder_of",
    "from_plain",
    "to_plain",
    "values_decoder",
]

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]
T = TypeVar("T")

MAX_SHORT = 16

NUMBER_CODES: dict[type[Any], str] = {int: "q", float: "d"}
"""Of :mod:`struct`: 8 bytes each."""

_SCALARS = (NoneType, bool, int, float, str, bytes)


def to_plain(value: Any) -> Any:
    """A dataclass as the tuple that stands for it. Raises WireError for what cannot be sent."""
    kind: Any = type(value)
    return encoder_of(kind)(value)


def from_plain(cls: type[T], value: Any) -> T:
    """The dataclass that :func:`to_plain` made the value of. Raises WireError."""
    hint: Any = cls
    made: T = decoder_of(hint)(value)
    return made


@cache
def encoder_of(hint: Any) -> Encoder:
    """What turns a value of the hinted type into plain ones."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        [kind, *others] = [option for option in arguments if option is not NoneType]
        encode = encoder_of(kind) if not others else _same
        return encode if encode is _same else lambda value: None if value is None else encode(value)
    if is_dataclass(hint):
        return dataclass_encoder(hint, {})
    if origin in (tuple, list, frozenset):
        return _sequence_encoder(arguments)
    if origin is dict:
        return _dict_encoder(encoder_of(arguments[1]))
    if hint is Any:
        return check_plain
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return str
    return _same


def _same(value: Any) -> Any:
    return value


def _dict_encoder(encode_item: Encoder) -> Encoder:
    def encode(value: Any) -> Any:
        if len(value) > MAX_MAP:
            raise WireError(f"cannot be sent: a map of {len(value)}, at most {MAX_MAP}")
        return {key: encode_item(item) for key, item in value.items()}

    return encode


def _sequence_encoder(arguments: tuple[Any, ...]) -> Encoder:
    if arguments[-1] is not Ellipsis and len(arguments) > 1:
        return tuple
    if arguments[0] in (int, float):
        return _numbers_encoder(arguments[0])
    encode = encoder_of(arguments[0])

    def encode_sequence(value: Any) -> Any:
        if len(value) > MAX_ARRAY:
            raise WireError(f"cannot be sent: a sequence of {len(value)}, at most {MAX_ARRAY}")
        return tuple(map(encode, value))

    return encode_sequence


def _numbers_encoder(kind: type[Any]) -> Encoder:
    code = NUMBER_CODES[kind]

    def encode(value: Any) -> Any:
        if len(value) <= MAX_SHORT:
            return tuple(map(kind, value))
        try:
            return struct.pack(f"<{len(value)}{code}", *value)
        except struct.error as error:
            raise WireError(f"cannot be sent: {error}") from None

    return encode


def dataclass_encoder(cls: Any, own: Mapping[str, Encoder]) -> Encoder:
    """Field by field, some in a way of their ``own``; defaults at the end are left out."""
    hints = _hints(cls)
    names = [spec.name for spec in fields(cls)]
    encoders = [own.get(name) or encoder_of(hints[name]) for name in names]
    defaults = [_default_of(spec) for spec in fields(cls)]

    def encode(value: Any) -> Any:
        values = [getattr(value, name) for name in names]
        while values and values[-1] == defaults[len(values) - 1]:
            values.pop()
        return tuple([encode_field(item) for encode_field, item in zip(encoders, values, strict=False)])

    return encode


def _default_of(spec: Field[Any]) -> Any:
    return spec.default if spec.default_factory is MISSING else spec.default_factory()


def _hints(cls: type[Any]) -> dict[str, Any]:
    # Functions cannot be sent; their own hints need not be known.
    return get_type_hints(cls, localns={"LogitsProcessor": Never})


@cache
def decoder_of(hint: Any, place: str = "") -> Decoder:
    """What turns plain values into one of the hinted type. ``place`` is what errors call it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return check_plain
    if hint is float:
        return lambda value: _as_float(value, place)
    if hint is Never:
        return _scalar_decoder(Never, place)
    if origin in (Union, UnionType):
        return _union_decoder(arguments, place)
    if origin is Literal:
        return _choice_decoder({(type(choice), choice): choice for choice in arguments}, place)
    if is_dataclass(hint):
        return dataclass_decoder(hint, {})
    if origin in (tuple, list, frozenset):
        return _sequence_decoder(origin, arguments, place)
    if origin is dict:
        return _dict_decoder(arguments[1], place)
    if issubclass(hint, StrEnum):
        return _choice_decoder({(str, str(choice)): choice for choice in hint}, place)
    return _scalar_decoder(hint, place)


def _scalar_decoder(kind: type[Any], place: str) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise _wrong(place, kind.__name__)
        return value

    return decode


def _as_float(value: Any, place: str) -> float:
    if type(value) is not float and type(value) is not int:
        raise _wrong(place, "float")
    return float(value)


def _wrong(place: str, expected: str) -> WireError:
    return WireError(f"{place}: must be {expected}")


def _union_decoder(arguments: tuple[Any, ...], place: str) -> Decoder:
    kinds = [kind for kind in arguments if kind is not NoneType]
    if len(kinds) > 1:  # of scalars; nothing else is in a message
        return _any_scalar_decoder(tuple(arguments), place)
    decode = decoder_of(kinds[0], place)
    return lambda value: None if value is None else decode(value)


def _any_scalar_decoder(kinds: tuple[Any, ...], place: str) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) not in kinds:
            raise _wrong(place, " or ".join(kind.__name__ for kind in kinds))
        return value

    return decode


def _choice_decoder(choices: dict[tuple[type[Any], Any], Any], place: str) -> Decoder:
    names = ", ".join(str(choice) for _, choice in choices)

    def decode(value: Any) -> Any:
        key = type(value), value
        if type(value) not in _SCALARS or key not in choices:
            raise _wrong(place, f"one of {names}")
        return choices[key]

    return decode


def _dict_decoder(hint: Any, place: str) -> Decoder:
    decode_item = decoder_of(hint, place)

    def decode(value: Any) -> Any:
        if type(value) is not dict or not all(type(key) is str for key in value):
            raise _wrong(place, "a map of strings")
        return {key: decode_item(item) for key, item in value.items()}

    return decode


def _sequence_decoder(origin: type[Any], arguments: tuple[Any, ...], place: str) -> Decoder:
    if arguments[-1] is not Ellipsis and len(arguments) > 1:
        return _fixed_decoder([decoder_of(hint, place) for hint in arguments], place)
    if arguments[0] in (int, float):
        return _numbers_decoder(origin, arguments[0], place)
    decode_item = decoder_of(arguments[0], place)

    def decode(value: Any) -> Any:
        if type(value) is not tuple:
            raise _wrong(place, "an array")
        return origin(map(decode_item, value))

    return decode


def _fixed_decoder(decoders: list[Decoder], place: str) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not tuple or len(value) != len(decoders):
            raise _wrong(place, f"an array of {len(decoders)}")
        return tuple([decode_item(item) for decode_item, item in zip(decoders, value, strict=True)])

    return decode


def _numbers_decoder(origin: type[Any], kind: type[Any], place: str) -> Decoder:
    code, kinds = NUMBER_CODES[kind], {kind}

    def decode(value: Any) -> Any:
        if type(value) is bytes and len(value) % 8 == 0:
            value = struct.unpack(f"<{len(value) // 8}{code}", value)
        elif type(value) is not tuple or not kinds.issuperset(map(type, value)):
            raise _wrong(place, f"an array of {kind.__name__}")
        return value if origin is tuple else origin(value)

    return decode


def dataclass_decoder(cls: Any, own: Mapping[str, Decoder]) -> Decoder:
    """The way back from :func:`dataclass_encoder`."""
    decode_values = values_decoder(cls, own)
    names = [spec.name for spec in fields(cls)]

    def decode(value: Any) -> Any:
        values = decode_values(value)
        try:
            return cls(**dict(zip(names, values, strict=False)))
        except (TrioletError, ValueError, TypeError) as error:
            raise WireError(f"{cls.__name__}: {str(error)[:200]}") from None

    return decode


def values_decoder(cls: Any, own: Mapping[str, Decoder]) -> Callable[[Any], list[Any]]:
    """What checks the values of the fields of a dataclass, as many as there are, without making it."""
    hints = _hints(cls)
    names = [spec.name for spec in fields(cls)]
    decoders = [own.get(name) or decoder_of(hints[name], f"{cls.__name__}.{name}") for name in names]
    num_required = sum(_default_of(spec) is MISSING for spec in fields(cls))

    def decode(value: Any) -> list[Any]:
        if type(value) is not tuple or not num_required <= len(value) <= len(names):
            raise _wrong(cls.__name__, f"an array of {num_required} to {len(names)}")
        return [decode_field(item) for decode_field, item in zip(decoders, value, strict=False)]

    return decode
