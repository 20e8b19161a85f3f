"""Logits adjusted on the device, beside what the host makes of them, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.triolet.runtime.rows import make_row

from triolet.plan import PlanRow
from triolet.request import LogitsAdjustments
from triolet.runtime.adjuster import Adjuster
from triolet.runtime.device_adjuster import AdjustmentsUnderWay, DeviceAdjuster, history_bytes
from triolet_kernels.reference import ReferenceOps

SIZE = 40
PROMPT = (1, 2, 33)
SAID = (5, 6, 7, 5, 6, 2, 39)

ADJUSTMENTS = {
    "biases": LogitsAdjustments(logit_bias=((3, 1.0), (4, -2.5))),
    "penalties": LogitsAdjustments(repetition_penalty=1.4, frequency_penalty=0.5, presence_penalty=-0.25),
    "bad-words": LogitsAdjustments(banned_sequences=((8,), (5, 9), (5, 6, 10), (6, 7, 5, 11), (2, 9))),
    "allowed": LogitsAdjustments(allowed_token_ids=(0, 31, 32, 39), logit_bias=((31, 2.0),)),
    "min-tokens": LogitsAdjustments(min_tokens=3, end_token_ids=frozenset((0, 1))),
    "all": LogitsAdjustments(
        logit_bias=((9, 1.0),), banned_sequences=((5, 9), (9,)), presence_penalty=1.0, min_tokens=2,
        end_token_ids=frozenset((9,)), allowed_token_ids=tuple(range(5, 30)),
    ),
}  # fmt: skip


class Slots:
    """Sequences in slots 0, 2, 4 …, all of which have said the same, on the host and on the device."""

    def __init__(self, adjustments: Sequence[LogitsAdjustments]) -> None:
        self.last_token_ids = torch.full((16,), -1)
        self.host = Adjuster(SIZE)
        self.device = DeviceAdjuster(
            ReferenceOps(), self.host, vocab_size=SIZE, last_token_ids=self.last_token_ids
        )
        first = [
            make_row(
                slot=2 * index,
                start=len(PROMPT) - 1,
                prompt_token_ids=PROMPT,
                history=PROMPT,
                adjustments=own,
            )
            for index, own in enumerate(adjustments)
        ]
        self.rows = first
        self.begin(first)

    def begin(self, rows: Sequence[PlanRow]) -> None:
        self.host.begin(rows)
        self.device.begin(rows)

    def launch(self) -> AdjustmentsUnderWay:
        slots = np.array([row.slot for row in self.rows])
        step = self.device.prepare(self.rows, range(len(self.rows)), slots)
        return self.device.place(step, [torch.from_numpy(array) for array in step.arrays()])

    def draw(self, adjusting: AdjustmentsUnderWay, token_id: int) -> None:
        drawn = torch.full((len(self.rows),), token_id)
        self.device.remember(adjusting, drawn)
        self.last_token_ids.index_copy_(0, torch.tensor([row.slot for row in self.rows]), drawn)
        self.rows = [replace(row, start=row.start + 1, history=None) for row in self.rows]

    def take(self, token_id: int) -> None:
        for row in self.rows:
            self.host.commit(row, (token_id,))

    def expected(self, logits: torch.Tensor) -> torch.Tensor:
        values = logits.numpy().copy()
        assert not self.host.adjust(values, self.rows)
        return torch.from_numpy(values)


@pytest.mark.parametrize("lag", [0, 1], ids=["known", "one-on-its-way"])
def test_rows_are_adjusted_as_the_host_would_once_it_knows_the_tokens(lag: int) -> None:
    slots = Slots(list(ADJUSTMENTS.values()))
    taken = 0
    for number, token_id in enumerate(SAID):
        logits = torch.randn(len(ADJUSTMENTS), SIZE)
        adjusted = logits.clone()
        adjusting = slots.launch()
        adjusting.apply(adjusted, 0)
        while taken < number:
            slots.take(SAID[taken])
            taken += 1
        assert torch.equal(adjusted, slots.expected(logits)), f"before token {number}"
        slots.draw(adjusting, token_id)
        if not lag:
            slots.take(SAID[taken])
            taken += 1


def test_a_launch_that_is_not_remembered_can_be_made_again() -> None:
    slots = Slots([ADJUSTMENTS["penalties"]])
    slots.launch()
    logits = torch.ones(1, SIZE)
    slots.launch().apply(logits, 0)
    assert torch.equal(logits, slots.expected(torch.ones(1, SIZE)))


def test_tokens_that_the_host_has_chosen_are_counted_as_well() -> None:
    slots = Slots([ADJUSTMENTS["penalties"]])
    slots.draw(slots.launch(), 5)
    slots.take(5)
    for token_id in (6, 6):  # chosen elsewhere, as if there were guesses
        slots.take(token_id)
        slots.rows = [replace(row, start=row.start + 1) for row in slots.rows]
    logits = torch.ones(1, SIZE)
    slots.launch().apply(logits, 0)
    assert torch.equal(logits, slots.expected(torch.ones(1, SIZE)))


def test_another_sequence_in_the_slot_begins_anew() -> None:
    slots = Slots([ADJUSTMENTS["all"]])
    slots.draw(slots.launch(), 9)
    other = replace(
        make_row(start=2, prompt_token_ids=(7, 7, 7), history=(7, 7, 7)), request=replace(
            slots.rows[0].request, prompt_token_ids=(7, 7, 7), adjustments=ADJUSTMENTS["penalties"]
        )
    )  # fmt: skip
    slots.rows = [other]
    slots.begin(slots.rows)
    logits = torch.ones(1, SIZE)
    slots.launch().apply(logits, 0)
    assert torch.equal(logits, slots.expected(torch.ones(1, SIZE)))


def test_memory_is_taken_where_histories_or_masks_are_wanted_and_is_what_was_said() -> None:
    slots = Slots([ADJUSTMENTS["biases"], ADJUSTMENTS["bad-words"]])
    assert slots.launch().tensors.output_counts.numel() == 0
    slots = Slots([ADJUSTMENTS["penalties"]])
    tensors = slots.launch().tensors
    taken = (tensors.output_counts, tensors.prompt_bits, tensors.masks)
    assert sum(tensor.nbytes for tensor in taken) == history_bytes(16, SIZE)
