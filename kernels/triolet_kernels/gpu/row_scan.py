"""Two kernels that look rows of logits through before anything is drawn from them or said of them.

1. The first of the highest logits, and the highest of each lane: 16 programs a row.
2. What part of the row weighs how much, and which tokens are surely among the likeliest: those that reach the
   n-th highest of the lanes' maxima, at least n. Up to 64 programs a row.

What they find is the same however many rows there are. They know nothing of draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.device_draws import (
    MAX_CANDIDATES,
    NUM_LANE_BLOCKS,
    NUM_LANES,
    NUM_PARTS,
    RowScratch,
    mass_bits,
)
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.logit_order import (
    NO_KEY,
    id_bits,
    inverse_temperature,
    load_keys,
    to_keys,
    to_logits,
    to_masses,
    to_places,
    to_weights,
)

__all__ = ["RowScan", "best_place", "limit_of", "load_masses", "part_constants"]

MIN_PART = 1024
"""A shorter part is not worth a program."""


def part_constants(size: int) -> dict[str, int]:
    """The constants of kernels that read what was found about rows of ``size`` logits."""
    part = max(MIN_PART, -(-size // NUM_PARTS))
    return {
        "SIZE": size,
        "PART": part,
        "PARTS": NUM_PARTS,
        "USED_PARTS": -(-size // part),
        "LANE_BLOCKS": NUM_LANE_BLOCKS,
        "MAX_CANDIDATES": MAX_CANDIDATES,
        "ID_BITS": id_bits(size),
        "MASS_BITS": mass_bits(size),
    }


class RowScan:
    """The kernels on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def look_through(
        self,
        logits: Tensor,
        scratch: RowScratch,
        temperatures: Tensor,
        top_k: Tensor,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
    ) -> None:
        """Fill ``scratch`` with what there is to know about ``logits (R, V)``.

        For a draw with these settings: candidates where there are filters, and the weights of parts unless
        top-k cuts the row. Without ``top_p`` and ``min_p``: both, ``top_k`` candidates at least. Neither
        where temperatures are 0.
        """
        num_rows, size = logits.shape
        constants = part_constants(size)
        self.launch(
            "find_best",
            _find_best,
            (num_rows, NUM_LANE_BLOCKS),
            *(logits, scratch.best, scratch.lane_maxima, scratch.num_candidates),
            SIZE=size,
            LANES=NUM_LANES,
            LANE_BLOCK=NUM_LANES // NUM_LANE_BLOCKS,
            ID_BITS=constants["ID_BITS"],
        )
        self.launch(
            "collect",
            _collect,
            (num_rows, constants["USED_PARTS"]),
            *(logits, scratch.best, scratch.lane_maxima, scratch.num_candidates, scratch.candidates),
            *(scratch.part_masses, temperatures, top_k, top_p, min_p),
            LANES=NUM_LANES,
            **{name: value for name, value in constants.items() if name != "USED_PARTS"},
        )

    def launch(self, name: str, kernel: Any, grid: Sequence[int], *arguments: Any, **constants: Any) -> None:
        """Start ``kernel`` in its one configuration, kept by ``name``."""
        self._device.launch(kernel, grid, self._device.configurations.only(name), *arguments, **constants)


@triton.jit
def _find_best(
    logits, best, lane_maxima, num_candidates,
    SIZE: tl.constexpr, LANES: tl.constexpr, LANE_BLOCK: tl.constexpr, ID_BITS: tl.constexpr,
    STEPS: tl.constexpr,
):  # fmt: skip
    index, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = logits + index * SIZE
    lanes = block * LANE_BLOCK + tl.arange(0, LANE_BLOCK)
    token_ids = tl.arange(0, STEPS)[:, None] * LANES + lanes[None, :]
    places = to_places(load_keys(row, token_ids, token_ids < SIZE), token_ids, ID_BITS)
    for start in range(LANES * STEPS, SIZE, LANES * STEPS):
        further = start + token_ids
        keys = load_keys(row, further, further < SIZE)
        places = tl.maximum(places, to_places(keys, further, ID_BITS))
    highest = tl.max(places, axis=0)
    tl.store(lane_maxima + index * LANES + lanes, to_keys(highest, ID_BITS))
    tl.store(best + index * (LANES // LANE_BLOCK) + block, tl.max(highest, axis=0))
    if block == 0:
        tl.store(num_candidates + index, 0)


@triton.jit
def best_place(best, index, BLOCKS: tl.constexpr):
    return tl.max(tl.load(best + index * BLOCKS + tl.arange(0, BLOCKS)), axis=0)


@triton.jit
def _nth_highest(keys, count):
    """The highest key that at least ``count`` of ``keys`` reach."""
    low = tl.min(keys, axis=0).to(tl.int64)
    high = tl.max(keys, axis=0).to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        is_reached = tl.sum((keys >= middle).to(tl.int32), axis=0) >= count
        low = tl.where(is_reached, middle, low)
        high = tl.where(is_reached, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
def limit_of(top_k, SIZE: tl.constexpr):
    """How many tokens top-k keeps, 0 if that is all of them."""
    return tl.where(top_k < SIZE, top_k, 0)


@triton.jit
def _collect(
    logits, best, lane_maxima, num_candidates, candidates, part_masses, temperatures, top_ks, top_ps, min_ps,
    SIZE: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr, LANES: tl.constexpr,
    LANE_BLOCKS: tl.constexpr, MAX_CANDIDATES: tl.constexpr, ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    index, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + index)
    if temperature > 0:
        top_k = tl.load(top_ks + index)
        limit = limit_of(top_k, SIZE)
        has_filters, needs_masses = top_k > 0, True
        if top_ps is not None:
            has_filters = has_filters | (tl.load(top_ps + index) < 1) | (tl.load(min_ps + index) > 0)
            needs_masses = limit == 0
        highest = to_logits(to_keys(best_place(best, index, LANE_BLOCKS), ID_BITS))
        factor = inverse_temperature(temperature)
        bound = NO_KEY
        if has_filters:
            most = (LANES * 3) // 4
            wanted = tl.where(limit > 0, tl.minimum(limit, most), most)
            bound = _nth_highest(tl.load(lane_maxima + index * LANES + tl.arange(0, LANES)), wanted)
        end = tl.minimum((part + 1) * PART, SIZE)
        masses = tl.zeros((BLOCK,), dtype=tl.int64)
        for start in range(part * PART, end, BLOCK):
            token_ids = start + tl.arange(0, BLOCK)
            keys = load_keys(logits + index * SIZE, token_ids, token_ids < end)
            if needs_masses:
                masses += to_masses(to_weights(keys, highest, factor), MASS_BITS)
            if has_filters:
                is_candidate = ((keys >= bound) & (keys > NO_KEY)).to(tl.int32)
                number = tl.sum(is_candidate, axis=0)
                if number > 0:
                    first = tl.atomic_add(num_candidates + index, number, sem="relaxed")
                    slots = first + tl.cumsum(is_candidate, axis=0) - 1
                    is_kept = (is_candidate > 0) & (slots < MAX_CANDIDATES)
                    places = to_places(keys, token_ids, ID_BITS)
                    tl.store(candidates + index * MAX_CANDIDATES + slots, places, mask=is_kept)
        tl.store(part_masses + index * PARTS + part, tl.sum(masses, axis=0))


@triton.jit
def load_masses(part_masses, PARTS: tl.constexpr, USED_PARTS: tl.constexpr):
    parts = tl.arange(0, PARTS)
    return tl.load(part_masses + parts, mask=parts < USED_PARTS, other=0)
