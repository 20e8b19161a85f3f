"""Biases, penalties and masks in plain torch, beside what the runtime does with numpy."""

from __future__ import annotations

import numpy as np
import torch

from triolet.request import LogitsAdjustments
from triolet.runtime.adjustments import RowAdjuster
from triolet_kernels.device_draws import DeviceAdjustments
from triolet_kernels.reference import ReferenceOps

SIZE = 100
PROMPT, OUTPUT = (3, 5, 5, 64, 99), (5, 7, 7, 7, 31)
CPU = torch.device("cpu")
ALLOWED = (5, *range(64, 96))


def adjusted(**changes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows before and after: the first has all adjustments, the second none, the third a mask alone."""
    rows = DeviceAdjustments.allocate(3, SIZE, CPU, num_histories=2, num_masks=1, num_biases=4)
    bits = np.zeros(SIZE + 28, dtype=bool)
    bits[list(PROMPT)] = True
    rows.prompt_bits[1] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
    rows.output_counts[1] = torch.bincount(torch.tensor(OUTPUT), minlength=SIZE)
    rows.masks[0] = torch.tensor([1 << 5, 0, -1, 0])
    rows.mask_rows.copy_(torch.tensor([0, -1, 0]))
    rows.bias_ends[0] = 4
    rows.bias_token_ids.copy_(torch.tensor([5, 7, 70, 70]))
    rows.biases.copy_(torch.tensor([2.5, -50.0, 1.0, -torch.inf]))
    rows.history_rows[0] = 1
    rows.repetition[0], rows.frequency[0], rows.presence[0] = 1.3, 0.25, -0.5
    for name, value in changes.items():
        getattr(rows, name).copy_(value)
    before = torch.randn(3, SIZE)
    after = before.clone()
    ReferenceOps().adjust_on_device(after, rows)
    return before, after


def expected(row: torch.Tensor, adjustments: LogitsAdjustments) -> torch.Tensor:
    values = row.numpy().copy()
    RowAdjuster(adjustments, PROMPT, OUTPUT).apply(values)
    return torch.from_numpy(values)


def all_adjustments(**changes: object) -> LogitsAdjustments:
    options = {
        "logit_bias": ((5, 2.5), (7, -50.0), (70, 1.0)),
        "banned_sequences": ((70,),),
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.25,
        "presence_penalty": -0.5,
        "allowed_token_ids": ALLOWED,
    }
    return LogitsAdjustments(**(options | changes))  # type: ignore[arg-type]


def test_each_row_is_adjusted_as_the_runtime_does_it() -> None:
    before, after = adjusted()
    assert torch.equal(after[0], expected(before[0], all_adjustments()))
    assert torch.equal(after[1], before[1])
    assert torch.equal(after[2], expected(before[2], LogitsAdjustments(allowed_token_ids=ALLOWED)))


def test_a_bias_with_a_condition_waits_for_its_token() -> None:
    conditions = torch.tensor([-1, -1, -1, 31])
    for last, banned in ((31, ((70,),)), (30, ())):
        before, after = adjusted(bias_conditions=conditions, last_token_ids=torch.tensor([last, 31, 31]))
        assert torch.equal(after[0], expected(before[0], all_adjustments(banned_sequences=banned)))


def test_drawn_tokens_are_counted_where_there_is_a_history() -> None:
    rows = DeviceAdjustments.allocate(3, SIZE, CPU, num_histories=2, num_masks=0, num_biases=0)
    rows.history_rows[0], rows.history_rows[2] = 1, 0
    for _ in range(2):
        ReferenceOps().note_on_device(rows, torch.tensor([7, 8, 9]))
    assert rows.output_counts.nonzero().tolist() == [[0, 9], [1, 7]]
    assert rows.output_counts.sum() == 4


def test_without_histories_and_masks_nothing_is_looked_up() -> None:
    rows = DeviceAdjustments.allocate(2, SIZE, CPU, num_histories=0, num_masks=0, num_biases=1)
    rows.bias_token_ids[0], rows.biases[0], rows.bias_ends[1] = 3, 1.5, 1
    logits = torch.zeros(2, SIZE)
    ReferenceOps().adjust_on_device(logits, rows)
    ReferenceOps().note_on_device(rows, torch.tensor([1, 2]))
    assert logits.nonzero().tolist() == [[1, 3]]
