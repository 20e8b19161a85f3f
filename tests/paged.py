"""A model with a paged KV cache of its own, fed ragged batches: what tests of models need of a runtime.

Blocks are handed out in a shuffled order and hold garbage at first, so that a test fails where a kernel
reads a slot it must not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from triolet.models.decoder import Decoder
from triolet_kernels.ops import AttentionBatch

__all__ = ["PagedModel"]


class PagedModel:
    """Sequences are named by integers and start empty; each step appends tokens to some of them."""

    def __init__(
        self,
        model: Decoder,
        *,
        dtype: torch.dtype = torch.float32,
        block_size: int = 8,
        num_blocks: int = 64,
    ) -> None:
        config = model.config
        shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
        generator = torch.Generator().manual_seed(0)
        self.model = model
        self._block_size = block_size
        self._kv_cache = [
            (
                torch.randn(shape, generator=generator).to(dtype) * 50,
                torch.randn(shape, generator=generator).to(dtype) * 50,
            )
            for _ in range(config.num_layers)
        ]
        self._free = random.Random(0).sample(range(num_blocks), num_blocks)
        self._blocks: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def step(self, tokens: Mapping[int, Sequence[int]]) -> list[Tensor]:
        """Append tokens to sequences; → logits ``(num_tokens, vocab)`` of each, at every new position."""
        counts = [len(part) for part in tokens.values()]
        return list(torch.split(self._forward(tokens, list(range(sum(counts)))), counts))

    def step_last(self, tokens: Mapping[int, Sequence[int]]) -> Tensor:
        """Append tokens to sequences; → logits ``(num_sequences, vocab)`` after the last token of each."""
        ends = accumulate(len(part) for part in tokens.values())
        return self._forward(tokens, [end - 1 for end in ends])

    def step_none(self, tokens: Mapping[int, Sequence[int]]) -> Tensor:
        """Append tokens to sequences and ask for no logits; → ``(0, vocab)``."""
        return self._forward(tokens, [])

    def release(self, sequence: int) -> None:
        """Forget a sequence and give its blocks back."""
        self._free += self._blocks.pop(sequence)
        del self._lengths[sequence]

    def _forward(self, tokens: Mapping[int, Sequence[int]], rows: list[int]) -> Tensor:
        token_ids = torch.tensor([token for part in tokens.values() for token in part])
        batch = self._append({sequence: len(part) for sequence, part in tokens.items()})
        with torch.inference_mode():
            indices = torch.tensor(rows, dtype=torch.int64)
            batches = [batch] * len(self.model.config.group_windows)
            hidden = self.model.forward(token_ids, batches, self._kv_cache, indices)
            return self.model.logits(hidden)

    def _append(self, counts: Mapping[int, int]) -> AttentionBatch:
        positions, slots, starts = [], [], [0]
        for sequence, count in counts.items():
            first = self._lengths.get(sequence, 0)
            self._lengths[sequence] = first + count
            blocks = self._blocks.setdefault(sequence, [])
            while len(blocks) * self._block_size < first + count:
                blocks.append(self._free.pop())
            for position in range(first, first + count):
                positions.append(position)
                block, offset = divmod(position, self._block_size)
                slots.append(blocks[block] * self._block_size + offset)
            starts.append(starts[-1] + count)
        lengths = [self._lengths[sequence] for sequence in counts]
        width = max(len(self._blocks[sequence]) for sequence in counts)
        tables = [
            self._blocks[sequence] + [-1] * (width - len(self._blocks[sequence])) for sequence in counts
        ]
        return AttentionBatch(
            positions=torch.tensor(positions),
            cache_slots=torch.tensor(slots),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            sequence_lengths=torch.tensor(lengths, dtype=torch.int32),
            max_query_length=max(counts.values()),
            max_sequence_length=max(lengths),
        )
