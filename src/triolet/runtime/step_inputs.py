"""What a forward pass reads: arrays that are sent to a device at once, and the tensors they become there.

A token that is not known yet is read on the device from where the step before it left it, by slot. A batch of
decodes can be filled up with rows that mean nothing, so that one captured graph does for several sizes. This
module knows nothing of models, of sampling or of how things are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.batch import StepBatch
from triolet_kernels.ops import AttentionBatch

__all__ = ["StepInputs", "StepTensors"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The same on the device.

    The token at each place is the larger one of ``token_ids`` and of what was last sampled in
    ``token_slots``: a known one stands beside a slot in which nothing ever is, an unknown one is -1.
    """

    token_ids: Tensor
    token_slots: Tensor
    logit_rows: Tensor
    attention: tuple[AttentionBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """T tokens of S sequences in G groups of layers; see :class:`~triolet_kernels.ops.AttentionBatch`.

    ``token_slots (T,)``: where each token is read that is -1 in ``token_ids (T,)``.
    """

    token_ids: Array
    token_slots: Array
    logit_rows: Array
    positions: Array
    query_starts: Array
    sequence_lengths: Array
    cache_slots: tuple[Array, ...]
    block_tables: tuple[Array, ...]
    max_query_length: int
    max_sequence_length: int

    @classmethod
    def of(cls, batch: StepBatch, rows: Sequence[PlanRow], empty_slot: int) -> StepInputs:
        """``batch`` is of ``rows``, on a CPU; nothing is ever sampled in ``empty_slot``."""
        first = batch.attention[0]
        query_starts = first.query_starts.numpy()
        token_ids = batch.token_ids.numpy()
        token_slots = np.full(len(token_ids), empty_slot, dtype=np.int64)
        unknown = [index for index, row in enumerate(rows) if not row.token_ids]
        token_ids[query_starts[unknown]] = -1
        token_slots[query_starts[unknown]] = [rows[index].slot for index in unknown]
        return cls(
            token_ids=token_ids,
            token_slots=token_slots,
            logit_rows=batch.logit_rows.numpy(),
            positions=first.positions.numpy(),
            query_starts=query_starts,
            sequence_lengths=first.sequence_lengths.numpy(),
            cache_slots=tuple(group.cache_slots.numpy() for group in batch.attention),
            block_tables=tuple(group.block_tables.numpy() for group in batch.attention),
            max_query_length=first.max_query_length,
            max_sequence_length=first.max_sequence_length,
        )

    @property
    def num_sequences(self) -> int:
        return len(self.sequence_lengths)

    @property
    def is_decode(self) -> bool:
        """Whether each sequence computes one token and has it looked at, in this order."""
        return self.max_query_length == 1 and np.array_equal(self.logit_rows, self.query_starts[:-1])

    def padded(
        self,
        num_rows: int,
        max_length: int,
        *,
        block_size: int,
        scratch_blocks: Sequence[int],
        empty_slot: int,
    ) -> StepInputs:
        """Decodes of one token each, filled up to ``num_rows``, tables to ``max_length`` tokens.

        Rows that mean nothing compute position 0 of a sequence of one token, in ``scratch_blocks``: a block
        of each group that no sequence has. All rows are looked at in the end.
        """
        assert self.is_decode
        num_more = num_rows - self.num_sequences
        num_columns = -(-max_length // block_size) - self.block_tables[0].shape[1]
        return StepInputs(
            token_ids=np.pad(self.token_ids, (0, num_more)),
            token_slots=np.pad(self.token_slots, (0, num_more), constant_values=empty_slot),
            logit_rows=np.arange(num_rows),
            positions=np.pad(self.positions, (0, num_more)),
            query_starts=np.arange(num_rows + 1, dtype=np.int32),
            sequence_lengths=np.pad(self.sequence_lengths, (0, num_more), constant_values=1),
            cache_slots=tuple(
                np.pad(slots, (0, num_more), constant_values=block * block_size)
                for slots, block in zip(self.cache_slots, scratch_blocks, strict=True)
            ),
            block_tables=tuple(
                _filled_up(table, num_more, num_columns, block)
                for table, block in zip(self.block_tables, scratch_blocks, strict=True)
            ),
            max_query_length=1,
            max_sequence_length=max_length,
        )

    def arrays(self) -> list[Array]:
        """All of them, in an order that :meth:`tensors` knows."""
        shared = [self.token_ids, self.token_slots, self.logit_rows, self.positions]
        return [*shared, self.query_starts, self.sequence_lengths, *self.cache_slots, *self.block_tables]

    def tensors(self, sent: Iterable[Tensor]) -> StepTensors:
        """What :meth:`arrays` have become on the device."""
        token_ids, token_slots, logit_rows, positions, query_starts, lengths, *of_groups = sent
        num_groups = len(self.cache_slots)
        return StepTensors(
            token_ids,
            token_slots,
            logit_rows,
            tuple(
                AttentionBatch(
                    positions=positions,
                    cache_slots=cache_slots,
                    block_tables=block_tables,
                    query_starts=query_starts,
                    sequence_lengths=lengths,
                    max_query_length=self.max_query_length,
                    max_sequence_length=self.max_sequence_length,
                )
                for cache_slots, block_tables in zip(
                    of_groups[:num_groups], of_groups[num_groups:], strict=True
                )
            ),
        )


def _filled_up(table: Array, num_rows: int, num_columns: int, block: int) -> Array:
    filled = np.full((len(table) + num_rows, table.shape[1] + num_columns), block, dtype=np.int32)
    filled[: len(table), : table.shape[1]] = table
    return filled
