"""Steps in which every sequence computes one token, captured once per size and replayed.

A model's forward pass is some hundreds of kernels, which the host cannot start as fast as a GPU does them. As
a graph they are started at once. A graph holds on to addresses and sizes, so there is one for each rung of
a ladder of batch sizes, and of another of lengths: batches in between are filled up with rows that mean
nothing. Graphs are captured when they are first wanted, are kept, and share one pool of memory and one buffer
of inputs: as many as there are rungs cost less than having batches of changing sizes captured again.

Where something cannot be captured, steps run as they stand from then on, which is said once. This module
knows neither what a forward pass is made of nor what is done with its result.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from triolet.runtime.accelerator import CaptureError, Device, Graph, send_together
from triolet.runtime.step_inputs import StepInputs, StepTensors

__all__ = ["DecodeGraphs", "batch_size_ladder", "length_ladder"]

logger = logging.getLogger("triolet.runtime")

Forward = Callable[[StepTensors], Tensor]

SHORTEST = 512
LENGTH_RATIO = 4
"""Attention over a graph's longest sequence starts as many blocks for a short one, which end at once."""


def batch_size_ladder(largest: int) -> tuple[int, ...]:
    """1, 2, 4, then every eighth up to 256, then every 32nd; ``largest`` is the last."""
    rungs = [1, 2, 4, *range(8, 257, 8), *range(288, largest + 32, 32)]
    return (*(rung for rung in rungs if rung < largest), largest)


def length_ladder(longest: int) -> tuple[int, ...]:
    """512 tokens, and four times as many with each rung; ``longest`` is the last."""
    rungs, rung = [], SHORTEST
    while rung < longest:
        rungs.append(rung)
        rung *= LENGTH_RATIO
    return (*rungs, longest)


class DecodeGraphs:
    """Runs decodes of up to ``max_num_seqs`` sequences of up to ``max_model_len`` tokens.

    ``forward`` → hidden states ``(R, hidden)`` of all rows. ``scratch_blocks``: of each group of layers, a
    block that no sequence has. ``empty_slot``: one in which nothing is ever sampled.
    """

    def __init__(
        self,
        device: Device,
        forward: Forward,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        scratch_blocks: Sequence[int],
        empty_slot: int,
    ) -> None:
        self._device = device
        self._forward = forward
        self._batch_sizes = batch_size_ladder(max_num_seqs)
        self._lengths = length_ladder(max_model_len)
        self._block_size = block_size
        self._scratch_blocks = scratch_blocks
        self._empty_slot = empty_slot
        self._buffer: Tensor | None = None
        self._pool: object = None
        self._graphs: dict[tuple[int, int], Graph] = {}
        self._is_off = False

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def run(self, inputs: StepInputs) -> Tensor | None:
        """Hidden states ``(S, hidden)`` of a batch of decodes, good until the next call; None for another
        batch, and where graphs cannot be captured."""
        if self._is_off or not inputs.is_decode or inputs.num_sequences > self._batch_sizes[-1]:
            return None
        num_rows = _rung(self._batch_sizes, inputs.num_sequences)
        max_length = _rung(self._lengths, inputs.max_sequence_length)
        tensors = self._send(self._pad(inputs, num_rows, max_length))
        graph = self._graphs.get((num_rows, max_length))
        if graph is not None:
            graph.replay()
            return graph.output[: inputs.num_sequences]
        # What is compiled or set up at first use cannot be captured, so the step runs as it stands before.
        hidden = self._forward(tensors)[: inputs.num_sequences]
        self._capture(num_rows, max_length, tensors)
        return hidden

    def clear(self) -> None:
        """Give the memory of all graphs back; they are captured anew when they are wanted."""
        self._graphs.clear()
        self._pool = None
        self._buffer = None

    def _pad(self, inputs: StepInputs, num_rows: int, max_length: int) -> StepInputs:
        return inputs.padded(
            num_rows,
            max_length,
            block_size=self._block_size,
            scratch_blocks=self._scratch_blocks,
            empty_slot=self._empty_slot,
        )

    def _send(self, inputs: StepInputs) -> StepTensors:
        if self._buffer is None:
            self._buffer = torch.empty(
                self._most_bytes(inputs), dtype=torch.uint8, device=self._device.torch_device
            )
        return inputs.tensors(send_together(self._device, inputs.arrays(), self._buffer))

    def _most_bytes(self, inputs: StepInputs) -> int:
        """What the largest batch takes, of the same groups as ``inputs``."""
        largest = self._pad(inputs, self._batch_sizes[-1], self._lengths[-1])
        return sum(array.nbytes + 64 for array in largest.arrays())

    def _capture(self, num_rows: int, max_length: int, tensors: StepTensors) -> None:
        if self._pool is None:
            self._pool = self._device.graph_pool()
        try:
            graph = self._device.capture(lambda: self._forward(tensors), self._pool)
            self._graphs[num_rows, max_length] = graph
        except CaptureError as error:
            self._is_off = True
            self.clear()
            logger.warning("steps are not captured as graphs, which costs speed: %s", error)


def _rung(ladder: Sequence[int], value: int) -> int:
    return ladder[bisect_left(ladder, value)]
