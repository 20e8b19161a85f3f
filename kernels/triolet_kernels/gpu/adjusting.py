"""Biases, penalties and masks on rows of logits, in place, and counts of what was drawn, for penalties.

What is done in which order: :class:`triolet_kernels.device_draws.DeviceAdjustments`. The repetition
penalty divides positive logits and multiplies negative ones (Keskar et al., "CTRL", 2019). This module knows
nothing of requests or draws.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from triolet_kernels.device_draws import DeviceAdjustments, num_mask_words
from triolet_kernels.gpu.launch import GpuDevice

__all__ = ["AdjustingKernels"]


class AdjustingKernels:
    """The adjustments on one device."""

    def __init__(self, device: GpuDevice) -> None:
        self._device = device

    def adjust_on_device(self, logits: Tensor, adjustments: DeviceAdjustments) -> None:
        """Adjust ``logits (R, V)`` float32 in place, without waiting."""
        num_rows, size = logits.shape
        rows = adjustments
        self._device.launch(
            _add_biases,
            (num_rows,),
            self._device.configurations.only("add_biases"),
            *(logits, rows.bias_starts, rows.bias_ends, rows.bias_token_ids, rows.biases),
            *(rows.bias_conditions, rows.last_token_ids),
            SIZE=size,
        )
        configuration = self._device.configurations.only("penalize_and_mask")
        penalties = (rows.repetition, rows.frequency, rows.presence)
        self._device.launch(
            _penalize_and_mask,
            (num_rows, triton.cdiv(size, configuration.constants["BLOCK"])),
            configuration,
            *(logits, *penalties, rows.history_rows, rows.prompt_bits, rows.output_counts),
            *(rows.mask_rows, rows.masks),
            SIZE=size,
            WORDS=num_mask_words(size),
        )

    def note_on_device(self, adjustments: DeviceAdjustments, token_ids: Tensor) -> None:
        """Count ``token_ids (R,)`` int64, one of each row, in the rows' histories, without waiting."""
        num_rows = token_ids.shape[0]
        configuration = self._device.configurations.only("note_tokens")
        self._device.launch(
            _note_tokens,
            (triton.cdiv(num_rows, configuration.constants["BLOCK"]),),
            configuration,
            *(token_ids, adjustments.history_rows, adjustments.output_counts, num_rows),
            SIZE=adjustments.output_counts.shape[1],
        )

    def forbid(self, logits: Tensor, rows: NDArray[np.int64], masks: NDArray[np.int32]) -> None:
        """Forbid in ``rows (N,)`` of ``logits`` what ``masks (N, ceil(V / 32))`` have no bit for."""
        num_rows, size = logits.shape
        adjustments = DeviceAdjustments.allocate(
            num_rows, size, logits.device, num_histories=0, num_masks=len(masks), num_biases=0
        )
        places = torch.from_numpy(rows).to(logits.device)
        adjustments.mask_rows[places] = torch.arange(len(rows), dtype=torch.int32, device=logits.device)
        adjustments.masks.copy_(torch.from_numpy(masks))
        self.adjust_on_device(logits, adjustments)


@triton.jit
def _add_biases(
    logits, bias_starts, bias_ends, bias_token_ids, biases, bias_conditions, last_token_ids,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    end = tl.load(bias_ends + index)
    last = tl.load(last_token_ids + index)
    for start in range(tl.load(bias_starts + index), end, BLOCK):
        entries = start + tl.arange(0, BLOCK)
        is_inside = entries < end
        conditions = tl.load(bias_conditions + entries, mask=is_inside, other=0)
        counts = is_inside & ((conditions < 0) | (conditions == last))
        token_ids = tl.load(bias_token_ids + entries, mask=counts, other=0)
        added = tl.load(biases + entries, mask=counts, other=0.0)
        # A token with a bias may be forbidden as well, in the same moment.
        tl.atomic_add(logits + index * SIZE + token_ids, added, mask=counts, sem="relaxed")


@triton.jit
def _has_bit(words, token_ids, is_inside):
    """Whether the bits of tokens in ``words`` are set."""
    return ((tl.load(words + (token_ids >> 5), mask=is_inside, other=0) >> (token_ids & 31)) & 1) != 0


@triton.jit
def _penalize_and_mask(
    logits, repetitions, frequencies, presences, history_rows, prompt_bits, output_counts, mask_rows, masks,
    SIZE: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    history = tl.load(history_rows + index).to(tl.int64)
    mask_row = tl.load(mask_rows + index).to(tl.int64)
    if (history >= 0) | (mask_row >= 0):
        token_ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        is_inside = token_ids < SIZE
        places = logits + index * SIZE + token_ids
        values = tl.load(places, mask=is_inside, other=0.0)
        if history >= 0:
            repetition = tl.load(repetitions + index)
            counts = tl.load(output_counts + history * SIZE + token_ids, mask=is_inside, other=0)
            is_in_prompt = _has_bit(prompt_bits + history * WORDS, token_ids, is_inside)
            penalized = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
            values = tl.where((counts > 0) | is_in_prompt, penalized, values)
            values -= tl.load(frequencies + index) * counts.to(tl.float32)
            values -= tl.where(counts > 0, tl.load(presences + index), 0.0)
        if mask_row >= 0:
            is_allowed = _has_bit(masks + mask_row * WORDS, token_ids, is_inside)
            is_wrong = (values != values) | (values == float("inf"))
            values = tl.where(is_allowed | is_wrong, values, float("-inf"))
        tl.store(places, values, mask=is_inside)


@triton.jit(do_not_specialize=["num_rows"])  # compiled once, not for some batches again
def _note_tokens(token_ids, history_rows, output_counts, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = rows < num_rows
    histories = tl.load(history_rows + rows, mask=is_inside, other=-1).to(tl.int64)
    drawn = tl.load(token_ids + rows, mask=is_inside, other=0)
    tl.atomic_add(output_counts + histories * SIZE + drawn, 1, mask=histories >= 0, sem="relaxed")
