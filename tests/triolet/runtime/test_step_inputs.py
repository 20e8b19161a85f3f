from __future__ import annotations

import numpy as np
import torch
from tests.triolet.runtime.rows import make_row

from triolet.runtime.batch import BatchBuilder
from triolet.runtime.step_inputs import StepInputs

EMPTY = 9


def inputs_of(*rows: object) -> StepInputs:
    builder = BatchBuilder(
        max_num_seqs=4,
        max_model_len=64,
        block_size=4,
        vocab_size=50,
        device=torch.device("cpu"),
        num_groups=2,
    )
    return StepInputs.of(builder.build(rows), rows, EMPTY)  # type: ignore[arg-type]


def decode(slot: int, start: int, *token_ids: int) -> object:
    blocks = tuple(range(10 * slot, 10 * slot + start // 4 + 1))
    more = (tuple(block + 5 for block in blocks),)
    return make_row(token_ids, slot=slot, start=start, new_block_ids=blocks, more_block_ids=more)


def test_an_unknown_token_is_read_from_its_slot_and_a_known_one_beside_an_empty_one() -> None:
    inputs = inputs_of(decode(2, 3), decode(1, 5, 7), decode(3, 0, 4, 5, 6))
    assert inputs.token_ids.tolist() == [-1, 7, 4, 5, 6]
    assert inputs.token_slots.tolist() == [2, EMPTY, EMPTY, EMPTY, EMPTY]


def test_rows_that_fill_up_write_to_the_scratch_blocks() -> None:
    inputs = inputs_of(decode(2, 3), decode(1, 9, 7))
    padded = inputs.padded(4, 32, block_size=4, scratch_blocks=[40, 50], empty_slot=EMPTY)
    assert padded.token_slots.tolist() == [2, EMPTY, EMPTY, EMPTY]
    assert padded.query_starts.tolist() == [0, 1, 2, 3, 4]
    assert padded.sequence_lengths.tolist() == [4, 10, 1, 1]
    assert padded.positions.tolist() == [3, 9, 0, 0]
    assert padded.logit_rows.tolist() == [0, 1, 2, 3]
    for group, scratch in enumerate((40, 50)):
        own = inputs.cache_slots[group].tolist()
        assert padded.cache_slots[group].tolist() == [*own, scratch * 4, scratch * 4]
        table = padded.block_tables[group]
        assert table.shape == (4, 8)
        assert (table[:2, :3] == inputs.block_tables[group]).all()
        assert (table[2:] == scratch).all()
    assert padded.max_sequence_length == 32
    kinds = [array.dtype for array in inputs.arrays()]
    assert [array.dtype for array in padded.arrays()] == kinds


def test_tensors_are_told_apart_again() -> None:
    inputs = inputs_of(decode(2, 3), decode(1, 9, 7))
    tensors = inputs.tensors(torch.from_numpy(np.ascontiguousarray(array)) for array in inputs.arrays())
    assert tensors.token_ids.tolist() == inputs.token_ids.tolist()
    assert tensors.logit_rows.tolist() == [0, 1]
    for group, batch in enumerate(tensors.attention):
        assert batch.cache_slots.tolist() == inputs.cache_slots[group].tolist()
        assert batch.block_tables.tolist() == inputs.block_tables[group].tolist()
        assert batch.sequence_lengths.tolist() == [4, 10]
        assert (batch.max_query_length, batch.max_sequence_length) == (1, 10)
