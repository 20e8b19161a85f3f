from __future__ import annotations

import torch
from tests.triolet.runtime.rows import make_row

from triolet.runtime.device_logprobs import FetchedLogprobs, StepLogprobs
from triolet_kernels.device_draws import DeviceDraws
from triolet_kernels.reference import ReferenceOps

CPU = torch.device("cpu")


def test_they_are_made_chunk_by_chunk_and_found_by_position() -> None:
    asked = [(1, make_row(num_logprobs=2).request), (4, make_row(num_logprobs=0).request)]
    step = StepLogprobs(asked, is_raw=True)
    sent = [torch.from_numpy(array) for array in step.arrays()]
    logits = torch.arange(35.0).view(5, 7) % 4
    for first in range(0, 5, 2):
        chunk = step.within(sent, first, min(first + 2, 5))
        if chunk is not None:
            draws = DeviceDraws.allocate(2, CPU)
            draws.token_ids.fill_(3)
            draws.num_kept.fill_(7)
            some = logits[first : first + 2].index_select(0, chunk.places)
            chunk.make(ReferenceOps(), some, draws)
    found = FetchedLogprobs(step.positions, [tensor.numpy() for tensor in step.tensors()])
    assert found.at(1).token_ids == (3, 0, 4)
    assert found.at(4).token_ids == (3,)
    assert found.at(1).rank == 3
    assert found.at(4).rank == 1 + int((logits[4] > logits[4, 3]).sum())


def test_where_nothing_is_asked_for_nothing_is_brought_over() -> None:
    step = StepLogprobs([], is_raw=False)
    assert step.within([torch.from_numpy(array) for array in step.arrays()], 0, 5) is None
    assert step.tensors() == []


def test_more_than_are_made_here_are_left_to_the_host() -> None:
    assert [StepLogprobs.is_made(make_row(num_logprobs=number).request) for number in (None, 0, 20, 21)] == [
        False,
        True,
        True,
        False,
    ]
