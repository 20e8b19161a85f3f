"""A batch as one tensor, and back."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from tests.triolet.runtime.rows import make_row

from triolet.runtime.batch import BatchBuilder
from triolet.runtime.batch_words import BatchSizes, join_batch, split_batch
from triolet_kernels.ops import AttentionBatch


@pytest.mark.parametrize("num_groups", [1, 3])
def test_what_is_joined_comes_apart_again(num_groups: int) -> None:
    builder = BatchBuilder(
        max_num_seqs=4,
        max_model_len=64,
        block_size=4,
        vocab_size=100,
        device=torch.device("cpu"),
        num_groups=num_groups,
    )
    more = ((8, 9), (5, 4))[: num_groups - 1]
    batch = builder.build(
        [
            make_row((1, 2, 3, 4, 5), new_block_ids=(3, 7), more_block_ids=more),
            make_row(
                (9,), slot=2, start=3, new_block_ids=(6,), more_block_ids=((1,), (2,))[: num_groups - 1]
            ),
            make_row((), slot=1, new_block_ids=(2,), more_block_ids=((7,), (7,))[: num_groups - 1]),
        ]
    )
    sizes, joined = join_batch(batch.token_ids, batch.attention, batch.logit_rows)
    assert len(joined) == sizes.num_words
    token_ids, attention, rows = split_batch(BatchSizes(*sizes.numbers()), joined.clone())
    assert_same(token_ids, batch.token_ids)
    assert_same(rows, batch.logit_rows)
    assert len(attention) == num_groups
    for actual, expected in zip(attention, batch.attention, strict=True):
        assert_equal_batches(actual, expected)


def assert_equal_batches(actual: AttentionBatch, expected: AttentionBatch) -> None:
    for field in fields(AttentionBatch):
        value = getattr(expected, field.name)
        if isinstance(value, torch.Tensor):
            assert_same(getattr(actual, field.name), value)
        else:
            assert getattr(actual, field.name) == value


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert actual.is_contiguous()
    assert torch.equal(actual, expected)
