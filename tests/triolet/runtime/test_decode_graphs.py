from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.test_step_inputs import EMPTY, decode, inputs_of
from torch import Tensor

from triolet.runtime.decode_graphs import DecodeGraphs, batch_size_ladder, length_ladder
from triolet.runtime.step_inputs import StepTensors


class Forward:
    """Doubles the tokens; notes the shapes it was called with."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, tensors: StepTensors) -> Tensor:
        self.shapes.append((len(tensors.token_ids), tensors.attention[0].max_sequence_length))
        return tensors.token_ids.float()[:, None] * 2


def graphs_of(device: FakeDevice, forward: Forward, max_model_len: int = 600) -> DecodeGraphs:
    return DecodeGraphs(
        device,
        forward,
        max_num_seqs=6,
        max_model_len=max_model_len,
        block_size=4,
        scratch_blocks=[40, 50],
        empty_slot=EMPTY,
    )


def test_ladders() -> None:
    assert batch_size_ladder(1) == (1,)
    assert batch_size_ladder(6) == (1, 2, 4, 6)
    assert batch_size_ladder(24) == (1, 2, 4, 8, 16, 24)
    assert batch_size_ladder(300)[-4:] == (248, 256, 288, 300)
    assert length_ladder(100) == (100,)
    assert length_ladder(5000) == (512, 2048, 5000)


def test_a_batch_is_captured_once_and_then_replayed() -> None:
    device, forward = FakeDevice(), Forward()
    graphs = graphs_of(device, forward)
    for count in range(4):
        hidden = graphs.run(inputs_of(decode(0, 3, count + 1), decode(1, 5, 2), decode(2, 1, 3)))
        assert hidden is not None
        assert hidden[:, 0].tolist() == [2.0 * (count + 1), 4.0, 6.0]
    assert (device.num_captures, device.num_replays) == (1, 3)
    assert set(forward.shapes) == {(4, 512)}


def test_other_sizes_and_lengths_have_graphs_of_their_own() -> None:
    device = FakeDevice()
    graphs = graphs_of(device, Forward())
    graphs.run(inputs_of(decode(0, 3, 1)))
    graphs.run(inputs_of(decode(0, 3, 1), decode(1, 3, 1)))
    graphs.run(inputs_of(*(decode(slot, 3, 1) for slot in range(4))))
    assert (graphs.num_graphs, device.num_replays) == (3, 0)


def test_prompts_are_not_captured() -> None:
    assert graphs_of(FakeDevice(), Forward()).run(inputs_of(decode(0, 3, 1), decode(1, 0, 4, 5))) is None


def test_rows_looked_at_in_another_order_are_not_replayed() -> None:
    """A token of a prompt that is not sampled, but has log-probabilities, comes last."""
    inputs = inputs_of(decode(0, 3, 1), decode(1, 5, 2), decode(2, 1, 3))
    assert graphs_of(FakeDevice(), Forward()).run(inputs) is not None
    inputs = replace(inputs, logit_rows=np.array([0, 2, 1]))
    assert graphs_of(FakeDevice(), Forward()).run(inputs) is None


def test_sizes_and_lengths_that_change_are_captured_once_each() -> None:
    device = FakeDevice()
    graphs = DecodeGraphs(
        device,
        Forward(),
        max_num_seqs=256,
        max_model_len=40960,
        block_size=4,
        scratch_blocks=[40, 50],
        empty_slot=EMPTY,
    )
    rungs = [(size, length) for size in batch_size_ladder(256) for length in length_ladder(40960)[:3]]
    one = inputs_of(decode(0, 3, 1))
    for _ in range(2):
        for size, length in rungs:
            filled = one.padded(size, 4, block_size=4, scratch_blocks=[40, 50], empty_slot=EMPTY)
            graphs.run(replace(filled, max_sequence_length=length))
    assert device.num_captures == device.num_replays == len(rungs) > 100


def test_what_cannot_be_captured_runs_as_it_stands_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graphs = graphs_of(FakeDevice(captures=False), Forward())
    hidden = graphs.run(inputs_of(decode(0, 3, 4)))
    assert hidden is not None
    assert hidden.tolist() == [[8.0]]
    assert graphs.run(inputs_of(decode(0, 3, 4))) is None
    assert len(caplog.records) == 1
    assert "which costs speed: operation not permitted" in caplog.text


def test_memory_is_given_back() -> None:
    device = FakeDevice()
    graphs = graphs_of(device, Forward())
    graphs.run(inputs_of(decode(0, 3, 4)))
    graphs.clear()
    assert graphs.num_graphs == 0
    assert torch.equal(graphs.run(inputs_of(decode(0, 3, 4))), torch.tensor([[8.0]]))  # type: ignore[arg-type]
    assert device.num_captures == 2, "in a pool of its own: the first went with its graph"
