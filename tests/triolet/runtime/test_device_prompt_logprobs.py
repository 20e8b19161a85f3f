"""A prompt's own tokens on a device: what the host would make of them, without waiting in a launch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.rows import make_row
from tests.triolet.runtime.toy_model import Near
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.device_prompt_logprobs import DevicePromptLogprobs
from triolet.runtime.prompt_logprobs import MAX_LOGIT_ROWS, PromptLogprobs, prompt_logprobs
from triolet_kernels.reference import ReferenceOps

VOCAB_SIZE = 30


def prompt_row(length: int, start: int, end: int, *, slot: int = 0, num_top: int = 2) -> PlanRow:
    prompt = tuple((7 * index + slot) % VOCAB_SIZE for index in range(length))
    return make_row(
        prompt[start:end], slot=slot, start=start, prompt_token_ids=prompt, num_prompt_logprobs=num_top
    )


def make(hidden: Tensor, rows: Sequence[PlanRow], device: FakeDevice | None = None) -> PromptLogprobs:
    device = device or FakeDevice()
    sizes: list[int] = []

    def logits_of(some: Tensor) -> Tensor:
        sizes.append(len(some))
        return some.clone()

    making = DevicePromptLogprobs(device, ReferenceOps(), VOCAB_SIZE)
    with device.no_waits():
        finish = making.make(hidden, rows, logits_of)
    assert max(sizes, default=0) <= MAX_LOGIT_ROWS
    return finish()


@pytest.mark.parametrize("most", [20, 25])
def test_entries_are_those_of_the_host(most: int) -> None:
    """25 of the most likely tokens are more than a device makes."""
    rows = [
        prompt_row(200, 0, 150, num_top=most),
        make_row((1, 2), slot=1),
        prompt_row(9, 4, 9, slot=2, num_top=0),
    ]
    hidden = torch.randn(150 + 4, VOCAB_SIZE)
    made, expected = make(hidden, rows), prompt_logprobs(hidden, rows, torch.clone)
    assert made.errors == {}
    assert {index: [Near(entry) for entry in entries] for index, entries in made.logprobs.items()} == {
        index: [Near(entry) for entry in entries] for index, entries in expected.logprobs.items()
    }


def test_no_rows_no_logits_and_nothing_to_wait_for() -> None:
    device = FakeDevice()
    result = make(torch.empty(0, VOCAB_SIZE), [make_row(), prompt_row(3, 2, 3, slot=1)], device)
    assert (result.logprobs, result.errors, device.waits) == ({}, {}, [])


def test_what_is_wrong_with_a_row_is_its_own() -> None:
    hidden = torch.zeros(7, VOCAB_SIZE)
    hidden[1, 4] = torch.nan
    rows = [
        prompt_row(3, 0, 3),
        make_row((1, 2, 99, 3), slot=1, prompt_token_ids=(1, 2, 99, 3), num_prompt_logprobs=2),
        prompt_row(3, 0, 3, slot=2),
    ]
    made, expected = make(hidden, rows), prompt_logprobs(hidden, rows, torch.clone)
    assert made.errors == expected.errors
    assert sorted(made.errors) == [0, 1]
    assert [entry.token_ids[0] for entry in made.logprobs[2]] == [9, 16]
