"""Choosing the experts of tokens on a GPU, the sum of what these make of them, and the shared expert's part.

The host never learns what is chosen: grids depend on shapes alone. Nothing is counted atomically, so that
pairs of a token and an expert are always in the same order. Must not know what an expert computes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triolet_kernels.expert_ops import Routing
from triolet_kernels.gpu.launch import GpuDevice

__all__ = ["RoutingKernels"]


class RoutingKernels:
    """Routing on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._launch = device.launch
        self._choose = device.configurations.only("choose_experts")
        self._sort = device.configurations.only("sort_pairs")
        self._sum = device.configurations.only("sum_experts")
        self._add_shared = device.configurations.only("add_shared_expert")

    def route(self, logits: Tensor, num_chosen: int, *, is_normalized: bool) -> Routing:
        """By ``logits (T, experts)`` float32; see :meth:`~triolet_kernels.expert_ops.ExpertOps.route`."""
        num_tokens, num_experts = logits.shape
        num_pairs = num_tokens * num_chosen
        chosen = logits.new_empty(num_tokens, num_chosen, dtype=torch.int32)
        routing = Routing(
            tokens=logits.new_empty(num_pairs, dtype=torch.int64),
            expert_starts=logits.new_empty(num_experts + 1, dtype=torch.int32),
            pairs=torch.empty_like(chosen),
            weights=logits.new_empty(num_tokens, num_chosen),
        )
        self._launch(
            _choose_experts,
            (num_tokens,),
            self._choose,
            *(logits, chosen, routing.weights, num_experts),
            NUM_CHOSEN=num_chosen,
            IS_NORMALIZED=is_normalized,
            BLOCK=triton.next_power_of_2(num_experts),
        )
        # One program more than there are experts says where the last one's pairs end.
        self._launch(
            _sort_pairs,
            (num_experts + 1,),
            self._sort,
            *(chosen, routing.tokens, routing.expert_starts, routing.pairs, num_pairs, num_experts),
            NUM_CHOSEN=num_chosen,
        )
        return routing

    def sum_experts(self, x: Tensor, routing: Routing) -> Tensor:
        (num_tokens, num_chosen), size = routing.pairs.shape, x.shape[1]
        output = x.new_empty(num_tokens, size)
        grid = (num_tokens, triton.cdiv(size, self._sum.constants["BLOCK"]))
        arguments = (x, routing.pairs, routing.weights, output, size)
        self._launch(_sum_experts, grid, self._sum, *arguments, NUM_CHOSEN=num_chosen)
        return output

    def add_shared_expert(self, total: Tensor, shared: Tensor, logits: Tensor) -> None:
        """``total += sigmoid(logits) * shared`` in place; ``logits (T, 1)`` float32."""
        num_tokens, size = total.shape
        grid = (num_tokens, triton.cdiv(size, self._add_shared.constants["BLOCK"]))
        self._launch(_add_shared_expert, grid, self._add_shared, total, shared, logits, size)


@triton.jit
def _choose_experts(
    logits, chosen, weights, num_experts,
    NUM_CHOSEN: tl.constexpr, IS_NORMALIZED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token. ``ranks``: which choice each expert is, -1 if it is none."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    is_open = experts < num_experts
    row = tl.load(logits + token * num_experts + experts, mask=is_open, other=-float("inf"))
    keys = tl.where(row == row, row, -float("inf"))  # a NaN is chosen last
    highest = tl.max(keys, axis=0)
    ranks = tl.full((BLOCK,), -1, tl.int32)
    for choice in tl.static_range(NUM_CHOSEN):
        best = tl.max(tl.where(is_open, keys, -float("inf")), axis=0)
        expert = tl.min(tl.where(is_open & (keys == best), experts, BLOCK), axis=0)
        ranks = tl.where(experts == expert, choice, ranks)
        is_open = is_open & (experts != expert)
    is_chosen = ranks >= 0
    shares = tl.where(experts < num_experts, tl.exp(row - highest), 0.0)
    counted = shares
    if IS_NORMALIZED:
        counted = tl.where(is_chosen, shares, 0.0)
    places = token * NUM_CHOSEN + tl.where(is_chosen, ranks, 0)
    tl.store(chosen + places, experts, mask=is_chosen)
    tl.store(weights + places, shares / tl.sum(counted, axis=0), mask=is_chosen)


@triton.jit
def _sort_pairs(
    chosen, tokens, starts, pairs, num_pairs, num_experts, NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr
):
    """One expert's pairs, after those of the experts before it."""
    expert = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    num_before = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, num_pairs, BLOCK):
        ids = first + offsets
        experts = tl.load(chosen + ids, mask=ids < num_pairs, other=num_experts + 1)
        num_before += (experts < expert).to(tl.int32)
    place = tl.sum(num_before, axis=0)
    tl.store(starts + expert, place)
    for first in range(0, num_pairs, BLOCK):
        ids = first + offsets
        experts = tl.load(chosen + ids, mask=ids < num_pairs, other=num_experts + 1)
        is_own = experts == expert
        count = is_own.to(tl.int32)
        places = place + tl.cumsum(count, axis=0) - count
        tl.store(tokens + places, (ids // NUM_CHOSEN).to(tl.int64), mask=is_own)
        tl.store(pairs + ids, places, mask=is_own)
        place += tl.sum(count, axis=0)


@triton.jit
def _sum_experts(x, pairs, weights, output, size, NUM_CHOSEN: tl.constexpr, BLOCK: tl.constexpr):
    """A part of one token's row."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < size
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(NUM_CHOSEN):
        pair = tl.load(pairs + token * NUM_CHOSEN + choice).to(tl.int64)
        weight = tl.load(weights + token * NUM_CHOSEN + choice)
        total += weight * tl.load(x + pair * size + columns, mask=is_column, other=0.0).to(tl.float32)
    tl.store(output + token * size + columns, total.to(output.dtype.element_ty), mask=is_column)


@triton.jit
def _add_shared_expert(total, shared, logits, size, BLOCK: tl.constexpr):
    """A part of one token's row."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = columns < size
    places = token * size + columns
    gate = tl.sigmoid(tl.load(logits + token))
    added = gate * tl.load(shared + places, mask=is_column, other=0.0).to(tl.float32)
    before = tl.load(total + places, mask=is_column, other=0.0).to(tl.float32)
    tl.store(total + places, (before + added).to(total.dtype.element_ty), mask=is_column)
