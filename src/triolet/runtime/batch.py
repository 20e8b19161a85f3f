"""From a step plan to the tensors of one forward pass.

It keeps, per slot, what a plan only ever tells once: the block table and the last sampled token. All of the
work is numpy over the rows or the tokens of a step; torch sees finished arrays. It knows nothing of models,
samplers or the scheduler's reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from triolet.plan import PlanRow
from triolet.runtime.logit_rows import prompt_rows, sampled_rows
from triolet_kernels.ops import AttentionBatch

__all__ = ["BatchBuilder", "StepBatch"]

UNKNOWN_TOKEN = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The input of one forward pass over T tokens.

    ``token_ids`` (T,) int64; ``logit_rows`` (R,) int64: the tokens after which one is sampled, then those
    after which the log-probability of the prompt's next is wanted; see :mod:`triolet.runtime.logit_rows`.
    ``attention`` has an entry for each group of layers.
    ``errors``: what is wrong with the input of a row, by its index in the plan; such a row is computed with
    a harmless token in the place of the bad one.
    """

    token_ids: Tensor
    attention: tuple[AttentionBatch, ...]
    logit_rows: Tensor
    errors: dict[int, str]


class BatchBuilder:
    """Builds the batches of consecutive steps over ``max_num_seqs`` slots."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        num_groups: int = 1,
    ) -> None:
        """``block_size`` is a power of two; ``num_groups``: of layers with block tables of their own."""
        self._block_shift = block_size.bit_length() - 1
        self._block_mask = block_size - 1
        self._vocab_size = vocab_size
        self._device = device
        max_num_blocks = -(-max_model_len // block_size)
        self._block_tables = np.zeros((num_groups, max_num_seqs, max_num_blocks), dtype=np.int32)
        self._last_token_ids = np.zeros(max_num_seqs, dtype=np.int64)
        self._numbers = torch.arange(max_num_seqs + 1, device=device)
        self._numbers_int32 = self._numbers.to(torch.int32)

    def build(self, rows: Sequence[PlanRow]) -> StepBatch:
        """The tensors of a step over ``rows``, at least one."""
        if all(map(_is_decode, rows)):
            return self._build_decodes(rows)
        slots = np.array([row.slot for row in rows])
        starts = np.array([row.start for row in rows])
        counts = np.array([row.num_tokens for row in rows])
        self._add_blocks(rows)
        query_starts = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(counts, out=query_starts[1:])
        token_ids = self._input_tokens(rows, slots, query_starts)
        errors = self._replace_bad_tokens(token_ids, query_starts)
        logit_rows = np.concatenate((sampled_rows(rows, query_starts), prompt_rows(rows, query_starts)))
        return StepBatch(
            token_ids=self._to_device(token_ids),
            attention=self._attention_batches(slots, starts, counts, query_starts),
            logit_rows=self._to_device(logit_rows),
            errors=errors,
        )

    def _build_decodes(self, rows: Sequence[PlanRow]) -> StepBatch:
        """The same for rows of one token each, after which one is sampled: most steps have no others.

        Between two steps caches are cold, so that each operation costs several times what it does in a loop.
        """
        num_rows = len(rows)
        self._add_blocks(rows)
        token_ids = [row.token_ids[0] if row.token_ids else self._last_token_ids[row.slot] for row in rows]
        inputs = np.array([[row.slot for row in rows], [row.start for row in rows], token_ids])
        slots, positions, tokens = inputs
        query_starts = self._numbers_int32[: num_rows + 1]
        is_good = min(token_ids) >= 0 and max(token_ids) < self._vocab_size
        errors = {} if is_good else self._replace_bad_tokens(tokens, np.arange(num_rows + 1))
        max_length = int(positions.max()) + 1
        places, offsets = positions >> self._block_shift, positions & self._block_mask
        shared = {
            "positions": self._to_device(positions),
            "query_starts": query_starts,
            "sequence_lengths": self._to_device((positions + 1).astype(np.int32)),
        }
        num_blocks = ((max_length - 1) >> self._block_shift) + 1
        return StepBatch(
            token_ids=self._to_device(tokens),
            attention=tuple(
                AttentionBatch(
                    cache_slots=self._to_device(
                        (tables[slots, places].astype(np.int64) << self._block_shift) | offsets
                    ),
                    block_tables=self._to_device(tables[slots, :num_blocks]),
                    max_query_length=1,
                    max_sequence_length=max_length,
                    **shared,
                )
                for tables in self._block_tables
            ),
            logit_rows=self._numbers[:num_rows],
            errors=errors,
        )

    def remember(self, slots: Sequence[int], token_ids: NDArray[np.int64]) -> None:
        """Keep the tokens just sampled in ``slots`` as the next unknown inputs there."""
        self._last_token_ids[slots] = token_ids

    def _add_blocks(self, rows: Sequence[PlanRow]) -> None:
        for row in rows:
            num_new_blocks = len(row.new_block_ids[0])
            if num_new_blocks:
                end = row.first_new_block + num_new_blocks
                self._block_tables[:, row.slot, row.first_new_block : end] = row.new_block_ids

    def _input_tokens(
        self, rows: Sequence[PlanRow], slots: NDArray[np.int64], query_starts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        num_tokens = int(query_starts[-1])
        known = chain.from_iterable([row.token_ids or UNKNOWN_TOKEN for row in rows])
        token_ids = np.fromiter(known, dtype=np.int64, count=num_tokens)
        is_unknown = np.array([not row.token_ids for row in rows])
        token_ids[query_starts[:-1][is_unknown]] = self._last_token_ids[slots[is_unknown]]
        return token_ids

    def _replace_bad_tokens(
        self, token_ids: NDArray[np.int64], query_starts: NDArray[np.int64]
    ) -> dict[int, str]:
        """Put token 0 for ids outside of the vocabulary, and say in which rows that was."""
        bad = np.flatnonzero((token_ids < 0) | (token_ids >= self._vocab_size))
        errors: dict[int, str] = {}
        for token, row in zip(bad, np.searchsorted(query_starts, bad, side="right") - 1, strict=True):
            errors[int(row)] = f"token id {token_ids[token]} is not in the vocabulary [0, {self._vocab_size})"
        token_ids[bad] = 0
        return errors

    def _attention_batches(
        self,
        slots: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        query_starts: NDArray[np.int64],
    ) -> tuple[AttentionBatch, ...]:
        positions = np.arange(query_starts[-1]) + np.repeat(starts - query_starts[:-1], counts)
        lengths = starts + counts
        max_length = int(lengths.max())
        num_blocks = ((max_length - 1) >> self._block_shift) + 1
        places = np.repeat(slots, counts), positions >> self._block_shift
        offsets = positions & self._block_mask
        shared = {
            "positions": self._to_device(positions),
            "query_starts": self._to_device(query_starts.astype(np.int32)),
            "sequence_lengths": self._to_device(lengths.astype(np.int32)),
        }
        return tuple(
            AttentionBatch(
                cache_slots=self._to_device((tables[places].astype(np.int64) << self._block_shift) | offsets),
                block_tables=self._to_device(tables[slots, :num_blocks]),
                max_query_length=int(counts.max()),
                max_sequence_length=max_length,
                **shared,
            )
            for tables in self._block_tables
        )

    def _to_device(self, array: NDArray[np.generic]) -> Tensor:
        """As a tensor; on a CPU it shares the array's memory."""
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _is_decode(row: PlanRow) -> bool:
    return row.num_tokens == 1 and row.is_sampled and row.request.num_prompt_logprobs is None
