"""The Triton kernel that settles a draw, once :mod:`triolet_kernels.gpu.row_scan` has looked the row through.

One program a row. Cuts and draw are found by bisection over places in the order of likelihood: among the
candidates, or among all tokens where these do not suffice. Each cut is a prefix of that order, so it is known
by how many tokens it has and what they weigh.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triolet_kernels.gpu.logit_order import (
    NEGATIVE_INFINITY_KEY,
    NO_KEY,
    POSITIVE_INFINITY_KEY,
    inverse_temperature,
    load_keys,
    to_keys,
    to_logits,
    to_masses,
    to_places,
    to_token_ids,
    to_weights,
)
from triolet_kernels.gpu.row_scan import best_place, limit_of, load_masses

__all__ = ["settle"]


@triton.jit
def _random_bits(seed, position, number):
    """53 random bits, highest first in a uint64: number ``number`` of the pair (Philox4x32-10)."""
    low, high = (position & 0xFFFFFFFF).to(tl.uint32), (position >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, (number >> 1).to(tl.uint32), tl.zeros_like(low))
    is_second = (number & 1) == 1
    upper = tl.where(is_second, c, a).to(tl.uint64)
    lower = tl.where(is_second, d, b).to(tl.uint64)
    return (((upper << 32) | lower) >> 11) << 11


@triton.jit
def _measure(
    places, masses, weights, row, place, least_weight, highest, factor,
    IS_ROW: tl.constexpr, SIZE: tl.constexpr, ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Number and mass of the tokens from ``place`` up that weigh at least ``least_weight``."""
    if IS_ROW:
        counts = tl.zeros((BLOCK,), dtype=tl.int32)
        sums = tl.zeros((BLOCK,), dtype=tl.int64)
        for start in range(0, SIZE, BLOCK):
            token_ids = start + tl.arange(0, BLOCK)
            is_inside = token_ids < SIZE
            keys = load_keys(row, token_ids, is_inside)
            found = to_weights(keys, highest, factor)
            is_in = (to_places(keys, token_ids, ID_BITS) >= place) & (found >= least_weight) & is_inside
            counts += is_in.to(tl.int32)
            sums += tl.where(is_in, to_masses(found, MASS_BITS), 0)
    else:
        is_in = (places >= place) & (weights >= least_weight)
        counts = is_in.to(tl.int32)
        sums = tl.where(is_in, masses, 0)
    return tl.sum(counts, axis=0).to(tl.int64), tl.sum(sums, axis=0)


@triton.jit
def _search(
    places, masses, weights, row, target, lowest, best, highest, factor, BY_COUNT: tl.constexpr,
    IS_ROW: tl.constexpr, SIZE: tl.constexpr, ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The first token, in order of likelihood, whose running number or mass is above ``target``.

    → its place, and number and mass of the tokens up to and with it. All tokens from ``lowest`` up are
    above the target together.
    """
    low, high = lowest, best
    number, mass = tl.zeros_like(target), tl.zeros_like(target)
    while low < high:
        middle = low + ((high - low + 1) >> 1)
        reached, weight = _measure(
            places, masses, weights, row, middle, 0.0, highest, factor,
            IS_ROW, SIZE, ID_BITS, MASS_BITS, BLOCK,
        )  # fmt: skip
        is_above = (reached if BY_COUNT else weight) > target
        low = tl.where(is_above, middle, low)
        high = tl.where(is_above, high, middle - 1)
        number = tl.where(is_above, number, reached)
        mass = tl.where(is_above, mass, weight)
    own = to_masses(to_weights(to_keys(low, ID_BITS), highest, factor), MASS_BITS)
    return low, number + 1, mass + own


@triton.jit
def _settle_filtered(
    places, masses, weights, row, total, limit, top_p, min_p, bits, lowest, best, highest, factor,
    IS_ROW: tl.constexpr, SIZE: tl.constexpr, ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Place of the token drawn, number and mass of those that the filters keep."""
    num_kept, mass = limit * 0 + SIZE, total
    if limit > 0:
        _, num_kept, mass = _search(
            places, masses, weights, row, limit - 1, lowest, best, highest, factor, True,
            IS_ROW, SIZE, ID_BITS, MASS_BITS, BLOCK,
        )  # fmt: skip
    if top_p < 1:
        target = _share(top_p, mass)
        _, num_kept, mass = _search(
            places, masses, weights, row, target, lowest, best, highest, factor, False,
            IS_ROW, SIZE, ID_BITS, MASS_BITS, BLOCK,
        )  # fmt: skip
    if min_p > 0:
        reached, weight = _measure(
            places, masses, weights, row, lowest, min_p.to(tl.float32), highest, factor,
            IS_ROW, SIZE, ID_BITS, MASS_BITS, BLOCK,
        )  # fmt: skip
        is_less = (reached <= num_kept) & (reached > 0)
        num_kept, mass = tl.where(is_less, reached, num_kept), tl.where(is_less, weight, mass)
    drawn, _, _ = _search(
        places, masses, weights, row, _scaled(bits, mass), lowest, best, highest, factor, False,
        IS_ROW, SIZE, ID_BITS, MASS_BITS, BLOCK,
    )  # fmt: skip
    return drawn, num_kept, mass


@triton.jit
def _scaled(bits, mass):
    """``bits / 2 ** 64 * mass``, rounded down: below ``mass``."""
    return tl.umulhi(bits, mass.to(tl.uint64)).to(tl.int64)


@triton.jit
def _share(top_p, mass):
    """What a running mass is above as soon as it is at least ``top_p * mass``; 0 ≤ top_p < 1."""
    return tl.maximum(tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64) - 1, 0)


@triton.jit
def _draw_by_id(
    row, part_masses, bits, highest, factor,
    SIZE: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, USED_PARTS: tl.constexpr,
    MASS_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token drawn in the order of ids, and the mass of all."""
    masses = load_masses(part_masses, PARTS, USED_PARTS)
    mass = tl.sum(masses, axis=0)
    target = _scaled(bits, mass)
    part = tl.sum((tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0)
    running = tl.sum(tl.where(tl.arange(0, PARTS) < part, masses, 0), axis=0)
    end = tl.minimum((part + 1) * PART, SIZE)
    drawn = part * PART
    for start in range(part * PART, end, BLOCK):
        token_ids = start + tl.arange(0, BLOCK)
        is_inside = token_ids < end
        found = to_masses(to_weights(load_keys(row, token_ids, is_inside), highest, factor), MASS_BITS)
        is_before = is_inside & (running + tl.cumsum(found, axis=0) <= target)
        drawn += tl.sum(is_before.to(tl.int32), axis=0)
        running += tl.sum(found, axis=0)
    return drawn.to(tl.int64), mass


@triton.jit
def _candidates(
    candidates, number, part_masses, limit, top_p, min_p, bits, highest, factor,
    SIZE: tl.constexpr, PARTS: tl.constexpr, USED_PARTS: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
    ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr,
):  # fmt: skip
    """Places, masses and weights of the candidates, the lowest place, and whether they settle the row.

    The last result is the mass of the row unless top-k cuts it.
    """
    slots = tl.arange(0, MAX_CANDIDATES)
    is_there = slots < number
    places = tl.load(candidates + slots, mask=is_there, other=NO_KEY << ID_BITS)
    weights = to_weights(to_keys(places, ID_BITS), highest, factor)
    masses = to_masses(weights, MASS_BITS)
    lowest = tl.min(tl.where(is_there, places, 0x7FFFFFFFFFFFFFFF), axis=0)
    total = tl.sum(masses, axis=0)
    is_enough = number == SIZE
    if limit > 0:
        is_enough = is_enough | (number >= limit)
    else:
        found = total
        total = tl.sum(load_masses(part_masses, PARTS, USED_PARTS), axis=0)
        if (top_p >= 1) & (min_p <= 0):
            is_enough = is_enough | (_scaled(bits, total) < found)
        if top_p < 1:
            is_enough = is_enough | (_share(top_p, total) < found)
        if min_p > 0:
            least = to_weights(to_keys(lowest, ID_BITS), highest, factor)
            is_enough = is_enough | (least < min_p.to(tl.float32))
    return places, masses, weights, lowest, is_enough & (number <= MAX_CANDIDATES), total


@triton.jit
def _draw_by_likelihood(
    row, candidates, number, part_masses, limit, top_p, min_p, bits, first, highest, factor,
    SIZE: tl.constexpr, PARTS: tl.constexpr, USED_PARTS: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
    ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """As :func:`_settle_filtered`, among the candidates if these suffice."""
    places, masses, weights, lowest, is_enough, total = _candidates(
        candidates, number, part_masses, limit, top_p, min_p, bits, highest, factor,
        SIZE, PARTS, USED_PARTS, MAX_CANDIDATES, ID_BITS, MASS_BITS,
    )  # fmt: skip
    if is_enough:
        place, num_kept, mass = _settle_filtered(
            places, masses, weights, row, total, limit, top_p, min_p, bits, lowest, first, highest, factor,
            False, SIZE, ID_BITS, MASS_BITS, BLOCK,
        )  # fmt: skip
    else:
        lowest = tl.full((), NEGATIVE_INFINITY_KEY << ID_BITS, tl.int64)
        place, num_kept, mass = _settle_filtered(
            places, masses, weights, row, total, limit, top_p, min_p, bits, lowest, first, highest, factor,
            True, SIZE, ID_BITS, MASS_BITS, BLOCK,
        )  # fmt: skip
    return place, num_kept, mass


@triton.jit
def settle(
    logits, best, num_candidates, candidates, part_masses, temperatures, top_ks, top_ps, min_ps,
    seeds, positions, numbers, uniforms, token_ids, highests, num_kepts, kept_masses,
    IS_SEEDED: tl.constexpr,
    SIZE: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, USED_PARTS: tl.constexpr,
    LANE_BLOCKS: tl.constexpr, MAX_CANDIDATES: tl.constexpr, ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * SIZE
    temperature = tl.load(temperatures + index)
    first = best_place(best, index, LANE_BLOCKS)
    key = to_keys(first, ID_BITS)
    highest = to_logits(key)
    tl.store(highests + index, highest)
    drawn = to_token_ids(first, ID_BITS)
    num_kept, mass = drawn * 0 + SIZE, drawn * 0
    if (temperature > 0) & (key > NEGATIVE_INFINITY_KEY) & (key < POSITIVE_INFINITY_KEY):
        factor = inverse_temperature(temperature)
        if IS_SEEDED:
            bits = _random_bits(tl.load(seeds + index), tl.load(positions + index), tl.load(numbers + index))
        else:
            bits = (tl.load(uniforms + index) * 2.0**53).to(tl.int64).to(tl.uint64) << 11
        top_k = tl.load(top_ks + index)
        limit = limit_of(top_k, SIZE)
        top_p, min_p = tl.load(top_ps + index), tl.load(min_ps + index)
        if (top_k == 0) & (top_p >= 1) & (min_p <= 0):
            drawn, mass = _draw_by_id(
                row,
                part_masses + index * PARTS,
                bits,
                highest,
                factor,
                SIZE,
                PART,
                PARTS,
                USED_PARTS,
                MASS_BITS,
                BLOCK,
            )
        else:
            place, num_kept, mass = _draw_by_likelihood(
                row, candidates + index * MAX_CANDIDATES, tl.load(num_candidates + index),
                part_masses + index * PARTS, limit, top_p, min_p, bits, first, highest, factor,
                SIZE, PARTS, USED_PARTS, MAX_CANDIDATES, ID_BITS, MASS_BITS, BLOCK,
            )  # fmt: skip
            drawn = to_token_ids(place, ID_BITS)
    tl.store(token_ids + index, drawn)
    tl.store(num_kepts + index, num_kept)
    tl.store(kept_masses + index, mass)
