from __future__ import annotations

import pytest
import torch
from tests.triolet.runtime.fake_device import FakeDevice
from tests.triolet.runtime.test_step_inputs import EMPTY, decode, inputs_of
from torch import Tensor

from triolet.runtime import decode_graphs
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


def test_the_graph_longest_unused_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_graphs, "MAX_GRAPHS", 2)
    device = FakeDevice()
    graphs = graphs_of(device, Forward())
    batches = [inputs_of(*(decode(slot, 3, 1) for slot in range(count))) for count in (1, 2, 4)]
    for index in (0, 1, 0, 2):
        graphs.run(batches[index])
    assert (graphs.num_graphs, device.num_captures) == (2, 3)
    graphs.run(batches[0])
    assert device.num_captures == 3
    graphs.run(batches[1])
    assert device.num_captures == 4


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
    assert device.num_captures == 2
