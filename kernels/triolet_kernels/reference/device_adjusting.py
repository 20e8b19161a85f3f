"""Adjusting rows of logits, and counting what was drawn, in plain torch, without a value on the host.

What is done: :class:`triolet_kernels.device_draws.DeviceAdjustments`. It must not know of any other
implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from triolet_kernels.device_draws import DeviceAdjustments

__all__ = ["adjust_on_device", "note_on_device"]


def adjust_on_device(logits: Tensor, adjustments: DeviceAdjustments) -> None:
    """Adjust ``logits (R, V)`` float32 in place."""
    num_rows = len(logits)
    _add_biases(logits, adjustments, num_rows)
    if len(adjustments.output_counts):
        logits.copy_(_penalized(logits, adjustments, num_rows))
    if len(adjustments.masks):
        mask_rows = adjustments.mask_rows[:num_rows]
        masks = adjustments.masks.index_select(0, mask_rows.clamp(min=0))
        is_kept = _bits(masks, logits.shape[1]) | (mask_rows < 0)[:, None]
        is_kept |= logits.isnan() | logits.isposinf()
        logits.masked_fill_(~is_kept, -torch.inf)


def note_on_device(adjustments: DeviceAdjustments, token_ids: Tensor) -> None:
    """Count ``token_ids (R,)`` int64, one of each row, in the rows' histories."""
    if not len(adjustments.output_counts):
        return
    history_rows = adjustments.history_rows[: len(token_ids)].long()
    places = history_rows.clamp(min=0) * adjustments.output_counts.shape[1] + token_ids
    adjustments.output_counts.view(-1).index_add_(0, places, (history_rows >= 0).int())


def _add_biases(logits: Tensor, adjustments: DeviceAdjustments, num_rows: int) -> None:
    entries = torch.arange(len(adjustments.biases), device=logits.device)
    starts, ends = adjustments.bias_starts[:num_rows, None], adjustments.bias_ends[:num_rows, None]
    conditions = adjustments.bias_conditions
    holds = (conditions < 0) | (conditions == adjustments.last_token_ids[:num_rows, None])
    counts = (entries >= starts) & (entries < ends) & holds
    added = torch.where(counts, adjustments.biases, 0.0)
    logits.index_add_(1, adjustments.bias_token_ids, added)


def _penalized(logits: Tensor, adjustments: DeviceAdjustments, num_rows: int) -> Tensor:
    history_rows = adjustments.history_rows[:num_rows]
    places = history_rows.clamp(min=0)
    counts = adjustments.output_counts.index_select(0, places)
    is_in_prompt = _bits(adjustments.prompt_bits.index_select(0, places), logits.shape[1])
    repetition, frequency, presence = (
        penalty[:num_rows, None]
        for penalty in (adjustments.repetition, adjustments.frequency, adjustments.presence)
    )
    penalized = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalized = torch.where((counts > 0) | is_in_prompt, penalized, logits)
    penalized = penalized - frequency * counts - presence * (counts > 0)
    return torch.where((history_rows < 0)[:, None], logits, penalized)


def _bits(words: Tensor, size: int) -> Tensor:
    """``words (R, ceil(size / 32))`` int32 → ``(R, size)`` bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    bits = ((words[:, :, None] >> shifts) & 1) != 0
    return bits.view(len(words), -1)[:, :size]
