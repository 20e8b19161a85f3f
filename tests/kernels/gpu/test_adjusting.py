"""Biases, penalties and masks on a GPU, beside what the runtime does with numpy."""

from __future__ import annotations

import numpy as np
import torch
from tests.kernels.gpu.interpreted import interpreted_ops

from triolet.request import LogitsAdjustments
from triolet.runtime.adjustments import RowAdjuster
from triolet_kernels.device_draws import DeviceAdjustments
from triolet_kernels.reference import ReferenceOps

SIZE = 100
PROMPT, OUTPUT = (3, 5, 5, 64, 99), (5, 7, 7, 7, 31)
CPU = torch.device("cpu")


def some_adjustments(num_rows: int) -> DeviceAdjustments:
    """None yet; history 1 is of PROMPT and OUTPUT, mask 0 allows token 5 and tokens 64 to 95."""
    adjustments = DeviceAdjustments.allocate(num_rows, SIZE, CPU, num_histories=2, num_masks=2, num_biases=8)
    bits = np.zeros(SIZE + 28, dtype=bool)
    bits[list(PROMPT)] = True
    words = np.packbits(bits, bitorder="little").view(np.int32)
    adjustments.prompt_bits[1] = torch.from_numpy(words)
    adjustments.output_counts[1] = torch.bincount(torch.tensor(OUTPUT), minlength=SIZE)
    adjustments.masks[0] = torch.tensor([1 << 5, 0, -1, 0])
    return adjustments


def expected_row(row: torch.Tensor, adjustments: LogitsAdjustments) -> torch.Tensor:
    expected = row.numpy().copy()
    RowAdjuster(adjustments, PROMPT, OUTPUT).apply(expected)
    return torch.from_numpy(expected)


def test_each_row_is_adjusted_as_the_runtime_does_it() -> None:
    logits = torch.randn(4, SIZE)
    before = logits.clone()
    adjustments = some_adjustments(4)
    adjustments.bias_token_ids[2:5] = torch.tensor([5, 7, 98])
    adjustments.biases[2:5] = torch.tensor([2.5, -50.0, -torch.inf])
    adjustments.bias_starts[1], adjustments.bias_ends[1] = 2, 5
    adjustments.history_rows[1] = adjustments.history_rows[2] = 1
    adjustments.repetition[1], adjustments.frequency[1], adjustments.presence[1] = 1.3, 0.25, -0.5
    adjustments.presence[2] = 0.5
    adjustments.mask_rows[1] = adjustments.mask_rows[3] = 0
    interpreted_ops().adjust_on_device(logits, adjustments)
    allowed = (5, *range(64, 96))
    first = LogitsAdjustments(
        logit_bias=((5, 2.5), (7, -50.0)),
        banned_sequences=((98,),),
        repetition_penalty=1.3,
        frequency_penalty=0.25,
        presence_penalty=-0.5,
        allowed_token_ids=allowed,
    )
    assert torch.equal(logits[0], before[0])
    torch.testing.assert_close(logits[1], expected_row(before[1], first), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        logits[2], expected_row(before[2], LogitsAdjustments(presence_penalty=0.5)), rtol=0, atol=0
    )
    assert torch.equal(logits[3], expected_row(before[3], LogitsAdjustments(allowed_token_ids=allowed)))


def test_more_biases_than_one_step_takes_are_all_added() -> None:
    adjustments = DeviceAdjustments.allocate(1, 2000, CPU, num_histories=0, num_masks=0, num_biases=1500)
    adjustments.bias_token_ids.copy_(torch.randperm(2000)[:1500])
    adjustments.biases.copy_(torch.randn(1500))
    adjustments.bias_ends[0] = 1500
    logits = torch.randn(1, 2000)
    expected = logits.clone()
    expected[0, adjustments.bias_token_ids.long()] += adjustments.biases
    interpreted_ops().adjust_on_device(logits, adjustments)
    assert torch.equal(logits, expected)


def test_drawn_tokens_are_counted_where_there_is_a_history() -> None:
    adjustments = some_adjustments(3)
    adjustments.history_rows[0], adjustments.history_rows[2] = 1, 0
    before = adjustments.output_counts.clone()
    interpreted_ops().note_on_device(adjustments, torch.tensor([7, 8, 9]))
    added = adjustments.output_counts - before
    assert added.nonzero().tolist() == [[0, 9], [1, 7]]
    assert added.sum() == 2


def test_biases_with_conditions_and_on_tokens_that_are_forbidden_are_those_of_the_reference() -> None:
    adjustments = DeviceAdjustments.allocate(3, SIZE, CPU, num_histories=0, num_masks=0, num_biases=6)
    adjustments.bias_token_ids.copy_(torch.tensor([5, 7, 7, 9, 5, 98]))
    adjustments.biases.copy_(torch.tensor([2.5, 1.0, -torch.inf, -torch.inf, -torch.inf, -torch.inf]))
    adjustments.bias_conditions.copy_(torch.tensor([-1, -1, 3, 4, 3, -1]))
    adjustments.bias_ends.copy_(torch.tensor([6, 6, 0]))
    adjustments.last_token_ids.copy_(torch.tensor([3, 4, 3]))
    logits = torch.randn(3, SIZE)
    expected = logits.clone()
    interpreted_ops().adjust_on_device(logits, adjustments)
    ReferenceOps().adjust_on_device(expected, adjustments)
    assert torch.equal(logits, expected)
    assert logits.isneginf().nonzero().tolist() == [[0, 5], [0, 7], [0, 98], [1, 9], [1, 98]]
