"""The tensors of a batch as one, so that they are sent at once, and back.

This module knows nothing of who sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from triolet_kernels.ops import AttentionBatch

__all__ = ["BatchSizes", "join_batch", "split_batch"]


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """What has to be known of a batch before its tensors can be told apart."""

    num_tokens: int
    num_rows: int
    num_sequences: int
    num_blocks: int
    num_groups: int
    max_query_length: int
    max_sequence_length: int

    def numbers(self) -> tuple[int, ...]:
        return astuple(self)

    @property
    def num_words(self) -> int:
        """Values in all tensors together."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Values of each: tokens, rows, positions, starts, lengths; slots and block tables of each group."""
        shared = [self.num_tokens, self.num_rows, self.num_tokens, self.num_sequences + 1, self.num_sequences]
        return shared + [self.num_tokens, self.num_sequences * self.num_blocks] * self.num_groups


def join_batch(
    token_ids: Tensor, batches: Sequence[AttentionBatch], rows: Tensor
) -> tuple[BatchSizes, Tensor]:
    """The sizes, and all values as one int32 tensor: a cache of 2³¹ tokens would be terabytes."""
    first = batches[0]
    sizes = BatchSizes(
        num_tokens=len(token_ids),
        num_rows=len(rows),
        num_sequences=first.block_tables.shape[0],
        num_blocks=first.block_tables.shape[1],
        num_groups=len(batches),
        max_query_length=first.max_query_length,
        max_sequence_length=first.max_sequence_length,
    )
    tensors = [token_ids, rows, first.positions, first.query_starts, first.sequence_lengths]
    for batch in batches:
        tensors += [batch.cache_slots, batch.block_tables.flatten()]
    return sizes, torch.cat([tensor.to(torch.int32) for tensor in tensors])


def split_batch(sizes: BatchSizes, joined: Tensor) -> tuple[Tensor, tuple[AttentionBatch, ...], Tensor]:
    """Token ids, batches and rows again."""
    token_ids, rows, positions, query_starts, sequence_lengths, *of_groups = torch.split(
        joined, sizes.lengths
    )
    tables_shape = sizes.num_sequences, sizes.num_blocks
    shared = {
        "positions": positions.long(),
        "query_starts": query_starts.clone(),
        "sequence_lengths": sequence_lengths.clone(),
    }
    batches = tuple(
        AttentionBatch(
            cache_slots=slots.long(),
            block_tables=tables.view(tables_shape).clone(),
            max_query_length=sizes.max_query_length,
            max_sequence_length=sizes.max_sequence_length,
            **shared,
        )
        for slots, tables in zip(of_groups[::2], of_groups[1::2], strict=True)
    )
    return token_ids.long(), batches, rows.long()
