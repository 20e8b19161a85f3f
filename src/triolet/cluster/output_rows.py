"""Token outputs on the wire: the one message that is sent for every step, made by hand for speed.

An output with nothing but tokens is ``(request id, token ids)``. The log-probabilities of many positions, of
which a prompt has thousands, are four strings of packed numbers: how many at each, token ids, values, ranks.

This module knows no other message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import MISSING, fields, make_dataclass
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import Any

from triolet.cluster.codec import MAX_SHORT, dataclass_encoder, values_decoder
from triolet.cluster.frames import WireError
from triolet.cluster.packing import MAX_ARRAY
from triolet.request import TokenLogprobs, TokenOutput

__all__ = ["decode_rows", "encode_rows"]


def _pack_numbers(code: str, values: Iterable[Any]) -> bytes:
    numbers = tuple(values)
    try:
        return struct.pack(f"<{len(numbers)}{code}", *numbers)
    except struct.error as error:
        raise WireError(f"cannot be sent: {error}") from None


def _unpack_numbers(code: str, data: Any) -> tuple[Any, ...]:
    size = struct.calcsize(f"<{code}")
    if type(data) is not bytes or len(data) % size:
        raise WireError("TokenLogprobs: must be packed numbers")
    return struct.unpack(f"<{len(data) // size}{code}", data)


def _encode_logprobs(positions: tuple[TokenLogprobs, ...] | None) -> Any:
    if positions is None:
        return None
    if len(positions) <= MAX_SHORT:
        return [(position.token_ids, position.logprobs, position.rank) for position in positions]
    return (
        _pack_numbers("H", (len(position.token_ids) for position in positions)),
        _pack_numbers("I", chain.from_iterable(position.token_ids for position in positions)),
        _pack_numbers("d", chain.from_iterable(position.logprobs for position in positions)),
        _pack_numbers("I", (position.rank for position in positions)),
    )


def _decode_logprobs(value: Any) -> tuple[TokenLogprobs, ...] | None:
    if value is None:
        return None
    if type(value) is not tuple:
        raise WireError("TokenLogprobs: must be an array")
    if len(value) != 4 or type(value[0]) is not bytes:
        return tuple(map(_decode_position, value))
    sizes, token_ids, logprobs, ranks = map(_unpack_numbers, "HIdI", value)
    if len(sizes) != len(ranks) or not sum(sizes) == len(token_ids) == len(logprobs):
        raise WireError("TokenLogprobs: the numbers do not add up")
    spans = pairwise(accumulate(sizes, initial=0))
    return tuple(
        _token_logprobs(token_ids[start:end], logprobs[start:end], rank)
        for (start, end), rank in zip(spans, ranks, strict=True)
    )


def _decode_position(value: Any) -> TokenLogprobs:
    if type(value) is not tuple or len(value) != 3:
        raise WireError("TokenLogprobs: must be an array of 3")
    token_ids, logprobs, rank = value
    if type(token_ids) is not tuple or type(logprobs) is not tuple or len(token_ids) != len(logprobs):
        raise WireError("TokenLogprobs: must have as many token ids as values")
    if not _INT.issuperset(map(type, (rank, *token_ids))) or not _FLOAT.issuperset(map(type, logprobs)):
        raise WireError("TokenLogprobs: token ids and rank must be int, values float")
    return _token_logprobs(token_ids, logprobs, rank)


def _thawed(cls: Any) -> Any:
    """A twin of a frozen dataclass: what it makes can be given the class, in a fifth of the time."""
    required = [(spec.name, Any) for spec in fields(cls) if spec.default is MISSING]
    optional = [(spec.name, Any, spec.default) for spec in fields(cls) if spec.default is not MISSING]
    return make_dataclass(f"Thawed{cls.__name__}", [*required, *optional], slots=True)


def _token_logprobs(*values: Any) -> TokenLogprobs:
    made: TokenLogprobs = _ThawedTokenLogprobs(*values)
    made.__class__ = TokenLogprobs
    return made


_INT, _FLOAT = {int}, {float}
_ThawedTokenLogprobs = _thawed(TokenLogprobs)
_ThawedTokenOutput = _thawed(TokenOutput)

_get_rest = attrgetter(*[spec.name for spec in fields(TokenOutput)][2:])
_NO_REST = _get_rest(TokenOutput(request_id=0))
_encode_whole = dataclass_encoder(
    TokenOutput, {"logprobs": _encode_logprobs, "prompt_logprobs": _encode_logprobs}
)
_decode_whole = values_decoder(
    TokenOutput, {"logprobs": _decode_logprobs, "prompt_logprobs": _decode_logprobs}
)


def encode_rows(outputs: tuple[TokenOutput, ...]) -> Any:
    """Plain values for the outputs. Raises WireError where there are more than ``MAX_ARRAY``."""
    if len(outputs) > MAX_ARRAY:
        raise WireError(f"cannot be sent: {len(outputs)} outputs, at most {MAX_ARRAY} at once")
    return [
        (output.request_id, output.token_ids)
        if _get_rest(output) == _NO_REST and len(output.token_ids) <= MAX_SHORT
        else _encode_whole(output)
        for output in outputs
    ]


def decode_rows(rows: Any) -> tuple[TokenOutput, ...]:
    """The outputs that :func:`encode_rows` was given. Raises WireError."""
    if type(rows) is not tuple:
        raise WireError("Outputs.outputs: must be an array")
    outputs: list[TokenOutput] = []
    for row in rows:
        if type(row) is tuple and len(row) == 2 and type(row[1]) is tuple:
            request_id, token_ids = row
            if type(request_id) is not int:
                raise WireError("TokenOutput.request_id: must be int")
            for token_id in token_ids:
                if type(token_id) is not int:
                    raise WireError("TokenOutput.token_ids: must be an array of int")
            output = _ThawedTokenOutput(request_id, token_ids)
        else:
            output = _ThawedTokenOutput(*_decode_whole(row))
        output.__class__ = TokenOutput
        outputs.append(output)
    return tuple(outputs)
