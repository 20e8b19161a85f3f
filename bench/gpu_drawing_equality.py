"""Drawing from rows of logits, adjusting them, log-probabilities: as cases for kernels and reference.

Knows nothing of what is done with the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from triolet_kernels.device_draws import (
    DeviceAdjustments,
    DeviceDraws,
    DeviceDrawSettings,
    DeviceLogprobs,
    num_mask_words,
)
from triolet_kernels.ops import Ops

__all__ = ["drawing_equality"]

MAX_TOP = 20
NUM_BIASES = 100
FORBIDDEN = -1e4
"""What stands for minus infinity, of which differences are no numbers."""

Run = Callable[[Ops], list[Tensor]]


class _RandomInputs(Protocol):
    """Random tensors."""

    device: torch.device

    def __call__(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor: ...


def drawing_equality(inputs: _RandomInputs, num_rows: int, vocab_size: int) -> Iterator[tuple[str, Run]]:
    """Names, and what makes tensors to be compared."""
    logits = 4 * inputs(num_rows, vocab_size, dtype=torch.float32)
    settings = _settings(num_rows, inputs.device)
    adjustments = _adjustments(logits)
    yield "draws", lambda ops: _draw(ops, logits, settings)
    yield "adjustments", lambda ops: _adjust(ops, logits, adjustments)
    for is_processed in (False, True):
        name = f"log-probabilities, {'processed' if is_processed else 'raw'}"
        yield name, lambda ops, p=is_processed: _logprobs(ops, logits, settings, p)  # type: ignore[misc]


def _settings(num_rows: int, device: torch.device) -> DeviceDrawSettings:
    """Greedy, random, and with each of the filters."""
    settings = DeviceDrawSettings.allocate(num_rows, device)
    numbers = torch.arange(num_rows, device=device)
    settings.temperatures.copy_(torch.where(numbers % 5 == 0, 0.0, 0.5 + numbers % 3 * 0.4))
    settings.top_k.copy_(torch.where(numbers % 5 == 2, 20, 0))
    settings.top_p.copy_(torch.where(numbers % 5 == 3, 0.9, 1.0))
    settings.min_p.copy_(torch.where(numbers % 5 == 4, 0.05, 0.0))
    settings.seeds.copy_(numbers * 77)
    settings.positions.copy_(numbers + 5)
    return settings


def _adjustments(logits: Tensor) -> DeviceAdjustments:
    """Biases, some of which forbid, penalties, and a mask for every other row."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    rows = DeviceAdjustments.allocate(
        num_rows, vocab_size, device, num_histories=num_rows, num_masks=1, num_biases=NUM_BIASES
    )
    numbers = torch.arange(num_rows, device=device)
    rows.bias_ends.fill_(NUM_BIASES)
    rows.bias_token_ids.copy_(torch.arange(NUM_BIASES, device=device) * 2)
    rows.biases.copy_(torch.where(rows.bias_token_ids % 6 == 0, -torch.inf, 1.5))
    rows.bias_conditions.copy_(torch.where(rows.bias_token_ids % 8 == 0, 3, -1))
    rows.last_token_ids.copy_(numbers % 4)
    rows.repetition.fill_(1.3)
    rows.frequency.fill_(0.25)
    rows.presence.fill_(-0.5)
    rows.history_rows.copy_(numbers.flip(0))
    rows.output_counts.copy_(torch.arange(vocab_size, device=device) % 3)
    rows.prompt_bits.fill_(0x0F0F0F0F)
    rows.mask_rows.copy_(torch.where(numbers % 2 == 0, 0, -1))
    rows.masks.copy_(torch.arange(num_mask_words(vocab_size), device=device) * 40503)
    return rows


def _draws(ops: Ops, logits: Tensor, settings: DeviceDrawSettings) -> DeviceDraws:
    draws = DeviceDraws.allocate(len(logits), logits.device)
    ops.draw_on_device(logits, settings, draws)  # type: ignore[attr-defined]
    return draws


def _draw(ops: Ops, logits: Tensor, settings: DeviceDrawSettings) -> list[Tensor]:
    draws = _draws(ops, logits, settings)
    return [draws.token_ids, draws.highest, draws.num_kept]


def _adjust(ops: Ops, logits: Tensor, adjustments: DeviceAdjustments) -> list[Tensor]:
    """The adjusted rows, and the counts after a token of each."""
    adjusted, before = logits.clone(), adjustments.output_counts.clone()
    ops.adjust_on_device(adjusted, adjustments)  # type: ignore[attr-defined]
    drawn = torch.arange(len(logits), device=logits.device) * 3
    ops.note_on_device(adjustments, drawn)  # type: ignore[attr-defined]
    counted = adjustments.output_counts.clone()
    adjustments.output_counts.copy_(before)
    return [adjusted.clamp(min=FORBIDDEN), counted]


def _logprobs(ops: Ops, logits: Tensor, settings: DeviceDrawSettings, is_processed: bool) -> list[Tensor]:
    logprobs = DeviceLogprobs.allocate(len(logits), MAX_TOP, logits.device)
    logprobs.num_top.fill_(MAX_TOP)
    temperatures = settings.temperatures
    logprobs.temperatures.fill_(1.0)
    if is_processed:
        logprobs.temperatures.copy_(torch.where(temperatures > 0, temperatures, 1.0))
    draws = _draws(ops, logits, settings)
    ops.logprobs_on_device(logits, draws, logprobs, is_processed=is_processed)  # type: ignore[attr-defined]
    return [logprobs.token_ids, logprobs.logprobs.clamp(min=FORBIDDEN), logprobs.ranks]
