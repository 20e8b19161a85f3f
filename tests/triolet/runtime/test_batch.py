"""Batches against an oracle that goes token by token."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from tests.triolet.runtime.rows import make_row

from triolet.plan import PlanRow
from triolet.runtime.batch import BatchBuilder, StepBatch

BLOCK_SIZE = 8
MAX_MODEL_LEN = 100
VOCAB_SIZE = 1000


def make_builder() -> BatchBuilder:
    return BatchBuilder(
        max_num_seqs=6,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        vocab_size=VOCAB_SIZE,
        device=torch.device("cpu"),
    )


class Oracle:
    """What a batch must be, computed with Python's lists and dictionaries."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[int]] = {}
        self.last_token_ids: dict[int, int] = {}

    def check(self, rows: list[PlanRow], batch: StepBatch) -> None:
        token_ids: list[int] = []
        positions, cache_slots, starts, lengths, logit_rows = [], [], [0], [], []
        for row in rows:
            (new_block_ids,) = row.new_block_ids
            if new_block_ids:
                kept = self.blocks.get(row.slot, [])[: row.first_new_block]
                self.blocks[row.slot] = kept + list(new_block_ids)
            token_ids += row.token_ids or [self.last_token_ids[row.slot]]
            for position in range(row.start, row.start + row.num_tokens):
                block = self.blocks[row.slot][position // BLOCK_SIZE]
                positions.append(position)
                cache_slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
            starts.append(len(positions))
            lengths.append(row.start + row.num_tokens)
            if row.is_sampled:
                logit_rows.append(len(positions) - 1)
        (attention,) = batch.attention
        assert batch.token_ids.tolist() == token_ids
        assert batch.logit_rows.tolist() == logit_rows
        assert attention.positions.tolist() == positions
        assert attention.cache_slots.tolist() == cache_slots
        assert attention.query_starts.tolist() == starts
        assert attention.sequence_lengths.tolist() == lengths
        assert attention.max_query_length == max(row.num_tokens for row in rows)
        assert attention.max_sequence_length == max(lengths)
        for row, length, table in zip(rows, lengths, attention.block_tables.tolist(), strict=True):
            num_blocks = -(-length // BLOCK_SIZE)
            assert table[:num_blocks] == self.blocks[row.slot][:num_blocks]


def random_steps(seed: int, num_steps: int) -> Iterator[list[PlanRow]]:
    """Sequences that come, are prefilled in chunks, decode and go, in shuffled slots."""
    generator = random.Random(seed)
    free_blocks = generator.sample(range(200), 200)
    running: dict[int, tuple[int, int]] = {}  # slot → tokens computed, length of the prompt
    num_blocks: dict[int, int] = {}
    for _ in range(num_steps):
        for slot in range(6):
            if slot in running and running[slot][0] > generator.randint(10, MAX_MODEL_LEN - 10):
                del running[slot]
            if slot not in running and generator.random() < 0.5:
                running[slot], num_blocks[slot] = (0, generator.randint(1, 40)), 0
        rows = []
        for slot in generator.sample(sorted(running), len(running)):
            start, prompt_length = running[slot]
            count = min(generator.randint(1, 20), prompt_length - start) if start < prompt_length else 1
            is_known = start < prompt_length or generator.random() < 0.5
            needed = -(-(start + count) // BLOCK_SIZE) - num_blocks[slot]
            added = [free_blocks.pop(0) for _ in range(needed)]
            free_blocks += added  # nothing is kept in them here: they may belong to several
            rows.append(
                make_row(
                    tuple(generator.randrange(VOCAB_SIZE) for _ in range(count)) if is_known else (),
                    slot=slot,
                    start=start,
                    first_new_block=num_blocks[slot],
                    new_block_ids=tuple(added),
                    is_sampled=start + count >= prompt_length,
                )
            )
            num_blocks[slot] += needed
            running[slot] = (start + count, prompt_length)
        if rows:
            yield rows


@pytest.mark.parametrize("seed", range(8))
def test_batches_are_those_of_the_oracle(seed: int) -> None:
    builder, oracle = make_builder(), Oracle()
    for step, rows in enumerate(random_steps(seed, 60)):
        batch = builder.build(rows)
        assert batch.errors == {}
        oracle.check(rows, batch)
        sampled = [row.slot for row in rows if row.is_sampled]
        tokens = [(31 * slot + step) % VOCAB_SIZE for slot in sampled]
        builder.remember(sampled, np.array(tokens, dtype=np.int64))
        oracle.last_token_ids.update(zip(sampled, tokens, strict=True))


def test_types_are_those_the_kernels_are_promised() -> None:
    batch = make_builder().build([make_row((1, 2), new_block_ids=(3,)), make_row((4,), slot=1)])
    (attention,) = batch.attention
    for tensor in (batch.token_ids, batch.logit_rows, attention.positions, attention.cache_slots):
        assert tensor.dtype == torch.int64
    for tensor in (attention.block_tables, attention.query_starts, attention.sequence_lengths):
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()
    assert type(attention.max_query_length) is int
    assert type(attention.max_sequence_length) is int


def test_batches_keep_their_values_when_later_ones_are_built() -> None:
    builder = make_builder()
    first = builder.build([make_row((5,), new_block_ids=(9,))])
    builder.build([make_row((6,), start=1, new_block_ids=(2,))])
    assert first.token_ids.tolist() == [5]
    assert first.attention[0].block_tables.tolist() == [[9]]


def test_nothing_sampled_is_no_logit_row() -> None:
    batch = make_builder().build([make_row((1, 2), is_sampled=False)])
    assert batch.logit_rows.tolist() == []
    assert batch.logit_rows.dtype == torch.int64


@pytest.mark.parametrize("bad", [-1, VOCAB_SIZE, 2**40])
def test_token_outside_the_vocabulary_is_an_error_of_its_row(bad: int) -> None:
    rows = [make_row((1, 2)), make_row((3, bad, 4), slot=1), make_row((5,), slot=2)]
    batch = make_builder().build(rows)
    assert list(batch.errors) == [1]
    assert str(bad) in batch.errors[1]
    assert batch.token_ids.tolist() == [1, 2, 3, 0, 4, 5]


def test_each_group_of_layers_has_its_own_blocks() -> None:
    builder = BatchBuilder(
        max_num_seqs=2,
        max_model_len=32,
        block_size=BLOCK_SIZE,
        vocab_size=VOCAB_SIZE,
        device=torch.device("cpu"),
        num_groups=2,
    )
    builder.build([make_row(tuple(range(9)), slot=1, new_block_ids=(3, 4), more_block_ids=((7, 5),))])
    row = make_row((1,) * 9, slot=1, start=9, first_new_block=2, new_block_ids=(6,), more_block_ids=((0,),))
    first, second = builder.build([row]).attention
    assert first.block_tables.tolist() == [[3, 4, 6]]
    assert second.block_tables.tolist() == [[7, 5, 0]]
    offsets = [*range(1, 8), 0, 1]
    assert first.cache_slots.tolist() == [
        block * BLOCK_SIZE + offset for block, offset in zip([4] * 7 + [6] * 2, offsets, strict=True)
    ]
    assert second.cache_slots.tolist() == [
        block * BLOCK_SIZE + offset for block, offset in zip([5] * 7 + [0] * 2, offsets, strict=True)
    ]
    assert first.positions is second.positions
    assert (first.max_query_length, second.max_sequence_length) == (9, 18)


def test_a_sequence_may_start_where_the_cached_prefix_ends() -> None:
    row = make_row((7, 8), start=16, new_block_ids=(3, 9, 4))
    (attention,) = make_builder().build([row]).attention
    assert attention.positions.tolist() == [16, 17]
    assert attention.cache_slots.tolist() == [4 * BLOCK_SIZE, 4 * BLOCK_SIZE + 1]
    assert attention.block_tables.tolist() == [[3, 9, 4]]
    assert attention.sequence_lengths.tolist() == [18]


def test_steps_of_decodes_alone() -> None:
    builder, oracle = make_builder(), Oracle()
    prompts = [
        make_row((1,) * (5 + slot), slot=slot, new_block_ids=(10 + 2 * slot, 11 + 2 * slot))
        for slot in range(3)
    ]
    oracle.check(prompts, builder.build(prompts))
    for step in range(20):
        last = {slot: 100 * slot + step for slot in range(3)}
        builder.remember(list(last), np.array(list(last.values())))
        oracle.last_token_ids |= last
        rows = []
        for slot in (2, 0, 1):
            start = 5 + slot + step
            is_new = start % BLOCK_SIZE == 0 and start >= 2 * BLOCK_SIZE
            rows.append(
                make_row(
                    (7 + step,) if slot == 0 else (),
                    slot=slot,
                    start=start,
                    first_new_block=start // BLOCK_SIZE if is_new else 0,
                    new_block_ids=(50 + 10 * slot + step % 10,) if is_new else (),
                )
            )
        batch = builder.build(rows)
        oracle.check(rows, batch)
        (attention,) = batch.attention
        assert [tensor.dtype for tensor in (batch.token_ids, batch.logit_rows, attention.positions)] == [
            torch.int64
        ] * 3
        assert attention.query_starts.dtype == attention.sequence_lengths.dtype == torch.int32


def test_of_decodes_alone_each_bad_token_is_said() -> None:
    rows = [make_row((token,), slot=slot, new_block_ids=(slot,)) for slot, token in enumerate((5, -1, 1000))]
    batch = make_builder().build(rows)
    assert batch.token_ids.tolist() == [5, 0, 0]
    assert batch.errors == {
        1: "token id -1 is not in the vocabulary [0, 1000)",
        2: "token id 1000 is not in the vocabulary [0, 1000)",
    }
