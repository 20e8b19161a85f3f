"""Log-probabilities of drawn tokens and of the most likely ones, on the device, without waiting.

Raw ones are of all tokens at temperature 1; processed ones of what was drawn from: after the temperature, and
of the tokens that the filters have left. Sums are of whole numbers, as in the draw. This module knows nothing
of requests.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.device_draws import DeviceDraws, DeviceLogprobs
from triolet_kernels.gpu.launch import GpuDevice
from triolet_kernels.gpu.logit_order import (
    NO_KEY,
    inverse_temperature,
    load_keys,
    to_keys,
    to_logits,
    to_places,
    to_token_ids,
)
from triolet_kernels.gpu.row_scan import RowScan, best_place, load_masses, part_constants

__all__ = ["LogprobKernels"]


class LogprobKernels:
    """The log-probabilities on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._scan = RowScan(device)

    def logprobs_on_device(
        self, logits: Tensor, draws: DeviceDraws, logprobs: DeviceLogprobs, *, is_processed: bool = False
    ) -> None:
        """Fill ``logprobs`` for what was drawn from rows of ``logits (R, V)`` float32.

        For raw ones these are the logits before adjustments; for processed ones those drawn from, and the
        temperatures those of the draw, of greedy rows 1. Rows whose highest logit is not finite get numbers
        that mean nothing.
        """
        num_rows, size = logits.shape
        scratch = logprobs.scratch
        self._scan.look_through(logits, scratch, logprobs.temperatures, logprobs.num_top)
        self._scan.launch(
            "pick_logprobs",
            _pick_logprobs,
            (num_rows,),
            *(logits, scratch.best, scratch.num_candidates, scratch.candidates, scratch.part_masses),
            *(draws.token_ids, draws.num_kept, draws.masses, logprobs.temperatures, logprobs.num_top),
            *(logprobs.token_ids, logprobs.logprobs, logprobs.ranks),
            IS_PROCESSED=is_processed,
            WIDTH=logprobs.token_ids.shape[1],
            **part_constants(size),
        )


@triton.jit
def _next_place(
    places, row, previous, IS_ROW: tl.constexpr, SIZE: tl.constexpr, ID_BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The highest place below ``previous``, or that of ``NO_KEY``."""
    if IS_ROW:
        found = tl.full((BLOCK,), NO_KEY << ID_BITS, tl.int64)
        for start in range(0, SIZE, BLOCK):
            token_ids = start + tl.arange(0, BLOCK)
            others = to_places(load_keys(row, token_ids, token_ids < SIZE), token_ids, ID_BITS)
            found = tl.maximum(found, tl.where(others < previous, others, NO_KEY << ID_BITS))
    else:
        found = tl.where(places < previous, places, NO_KEY << ID_BITS)
    return tl.max(found, axis=0)


@triton.jit
def _rank_of(row, token_id, SIZE: tl.constexpr, ID_BITS: tl.constexpr, BLOCK: tl.constexpr):
    """The place of a token, and how many are at it or above it."""
    place = to_places(load_keys(row, token_id, token_id >= 0), token_id, ID_BITS)
    counts = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, SIZE, BLOCK):
        token_ids = start + tl.arange(0, BLOCK)
        is_inside = token_ids < SIZE
        others = to_places(load_keys(row, token_ids, is_inside), token_ids, ID_BITS)
        counts += (is_inside & (others >= place)).to(tl.int32)
    return place, tl.sum(counts, axis=0).to(tl.int64)


@triton.jit
def _logprob_of(place, highest, factor, log_mass, ID_BITS: tl.constexpr):
    scaled = (to_logits(to_keys(place, ID_BITS)) - highest) * factor
    return (scaled.to(tl.float64) - log_mass).to(tl.float32)


@triton.jit
def _pick_logprobs(
    logits, best, num_candidates, candidates, part_masses, drawn_ids, num_kepts, kept_masses, temperatures,
    num_tops, token_ids, logprobs, ranks,
    IS_PROCESSED: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, PART: tl.constexpr,
    PARTS: tl.constexpr, USED_PARTS: tl.constexpr, LANE_BLOCKS: tl.constexpr, MAX_CANDIDATES: tl.constexpr,
    ID_BITS: tl.constexpr, MASS_BITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + index)
    if temperature > 0:
        row = logits + index * SIZE
        factor = inverse_temperature(temperature)
        first = best_place(best, index, LANE_BLOCKS)
        highest = to_logits(to_keys(first, ID_BITS))
        num_top = tl.load(num_tops + index)
        mass = tl.sum(load_masses(part_masses + index * PARTS, PARTS, USED_PARTS), axis=0)
        num_left = num_top
        if IS_PROCESSED:
            num_kept = tl.load(num_kepts + index)
            mass = tl.where(num_kept < SIZE, tl.load(kept_masses + index), mass)
            num_left = tl.minimum(num_top, num_kept)
        log_mass = tl.log(mass.to(tl.float64)) - MASS_BITS * 0.6931471805599453
        drawn = tl.load(drawn_ids + index)
        place, rank = _rank_of(row, drawn, SIZE, ID_BITS, BLOCK)
        tl.store(ranks + index, rank)
        ids, values = token_ids + index * WIDTH, logprobs + index * WIDTH
        tl.store(ids, drawn)
        tl.store(values, _logprob_of(place, highest, factor, log_mass, ID_BITS))
        number = tl.load(num_candidates + index)
        slots = tl.arange(0, MAX_CANDIDATES)
        places = tl.load(
            candidates + index * MAX_CANDIDATES + slots, mask=slots < number, other=NO_KEY << ID_BITS
        )
        is_enough = (number <= MAX_CANDIDATES) & (number >= num_left)
        place = first + 1
        for entry in range(1, WIDTH):
            value, token_id = tl.full((), float("-inf"), tl.float32), tl.full((), -1, tl.int64)
            if entry <= num_left:
                if is_enough:
                    place = _next_place(places, row, place, False, SIZE, ID_BITS, BLOCK)
                else:
                    place = _next_place(places, row, place, True, SIZE, ID_BITS, BLOCK)
                if to_keys(place, ID_BITS) > NO_KEY:
                    value = _logprob_of(place, highest, factor, log_mass, ID_BITS)
                    if (not IS_PROCESSED) | (value > float("-inf")):
                        token_id = to_token_ids(place, ID_BITS)
            tl.store(ids + entry, token_id)
            tl.store(values + entry, value)
