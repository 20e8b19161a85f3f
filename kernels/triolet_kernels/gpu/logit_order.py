"""The order of a row's tokens as whole numbers, and their weights likewise: what the drawing kernels share.

A token's place is ``key << ID_BITS | (2 ** ID_BITS - 1 - id)``, int64: more likely tokens have higher ones,
and of equally likely ones the lowest id has the highest. A key is int32, in the order of the logits; NaN is
above them all. A weight is ``exp((logit - highest) / temperature)`` in units of ``2 ** -MASS_BITS``. Sums of
whole numbers are exact, hence the same in whatever order they are made.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "NAN_KEY",
    "NEGATIVE_INFINITY_KEY",
    "NO_KEY",
    "POSITIVE_INFINITY_KEY",
    "id_bits",
    "inverse_temperature",
    "load_keys",
    "to_keys",
    "to_logits",
    "to_masses",
    "to_places",
    "to_token_ids",
    "to_weights",
]

NAN_KEY = tl.constexpr(0x7FFFFFFF)
POSITIVE_INFINITY_KEY = tl.constexpr(0x7F800000)
NEGATIVE_INFINITY_KEY = tl.constexpr(-0x7F800001)
NO_KEY = tl.constexpr(-0x80000000)
"""Below that of any logit."""


def id_bits(vocab_size: int) -> int:
    """How many bits hold any token id."""
    return max(1, (vocab_size - 1).bit_length())


@triton.jit
def load_keys(row, token_ids, is_inside):
    """Keys of the logits at ``token_ids`` of a row, ``NO_KEY`` where ``is_inside`` is false."""
    logits = tl.load(row + token_ids, mask=is_inside, other=0.0)
    bits = (logits + 0.0).to(tl.int32, bitcast=True)  # minus zero becomes zero, which it equals
    keys = tl.where(logits == logits, bits ^ ((bits >> 31) & 0x7FFFFFFF), NAN_KEY)
    return tl.where(is_inside, keys, NO_KEY)


@triton.jit
def to_places(keys, token_ids, ID_BITS: tl.constexpr):
    """Places of tokens, in their order; those of ``NO_KEY`` are below all others."""
    ids_from_last = ~token_ids & ((1 << ID_BITS) - 1)
    return (keys.to(tl.int64) << ID_BITS) | ids_from_last.to(tl.int64)


@triton.jit
def to_keys(places, ID_BITS: tl.constexpr):
    return (places >> ID_BITS).to(tl.int32)


@triton.jit
def to_token_ids(places, ID_BITS: tl.constexpr):
    return ~places & ((1 << ID_BITS) - 1)


@triton.jit
def to_logits(keys):
    """The logits that have these keys; NaN for ``NAN_KEY``."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def to_weights(keys, highest, factor):
    """``exp((logit - highest) * factor)`` float32; 0 for ``NO_KEY``."""
    weights = tl.exp((to_logits(keys) - highest) * factor)
    return tl.where(keys >= NEGATIVE_INFINITY_KEY, weights, 0.0)


@triton.jit
def to_masses(weights, MASS_BITS: tl.constexpr):
    return (weights * 2.0**MASS_BITS).to(tl.int64)


@triton.jit
def inverse_temperature(temperature):
    """float64 → float32: not infinite, however small the temperature."""
    return (1.0 / tl.maximum(temperature, 1.1754943508222875e-38)).to(tl.float32)
