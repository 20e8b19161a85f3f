"""Attention of short queries, such as one token of each sequence, with the context split among programs.

How a context is split depends on its length alone, and the parts are merged in order, so the result for a
sequence is the same whatever the batch, its padding and the number of programs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triolet_kernels.gpu.attention_tile import attend_run

__all__ = ["MAX_SPLITS", "decode_attention", "merge_splits"]

MAX_SPLITS = 32
"""Into how many parts a context is split at most."""


@triton.jit(do_not_specialize=["num_rows", "table_stride"])
def decode_attention(
    query, key_cache, value_cache, output, part_outputs, part_maxima, part_totals,
    block_tables, query_starts, sequence_lengths, table_stride, num_rows, scale, inverse_cap,
    WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PRECISION: tl.constexpr,
    SHORT: tl.constexpr, SPLITS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
):  # fmt: skip
    """One sequence with 1 to SHORT tokens, one key/value head, and every so many of its splits.

    Rows are tokens × GROUP query heads. ``part_*`` (S, G, SPLITS, num_rows[, HEAD_DIM]): what each split
    finds, unless there is but one.
    """
    sequence, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query_start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - query_start
    if (num_tokens == 0) | (num_tokens > SHORT):
        return
    length = tl.load(sequence_lengths + sequence)
    rows, dims = tl.arange(0, BLOCK_M), tl.arange(0, PADDED_DIM)
    is_row = rows < num_tokens * GROUP
    first_position = length - num_tokens
    positions = tl.where(is_row, first_position + rows // GROUP, -1)
    heads = (
        (query_start + rows // GROUP).to(tl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + rows % GROUP
    )
    places = heads[:, None] * HEAD_DIM + dims[None, :]
    is_value = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    queries = tl.load(query + places, mask=is_value, other=0.0)

    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0)
    low = first // BLOCK_N * BLOCK_N
    size = tl.maximum(tl.cdiv(tl.cdiv(length - low, SPLITS), BLOCK_N) * BLOCK_N, MIN_SPLIT)
    num_splits = tl.cdiv(length - low, size)
    for split in tl.range(tl.program_id(2), num_splits, tl.num_programs(2), num_stages=1):
        start = low + split * size
        maximum, total, weighted = attend_run(
            queries, positions, start, tl.minimum(start + size, length), first, length,
            first_position, length - 1,
            key_cache, value_cache, block_tables + sequence * table_stride, kv_head, scale, inverse_cap,
            WINDOW, HAS_CAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, PRECISION, BLOCK_N,
        )  # fmt: skip
        if num_splits == 1:
            result = weighted / total[:, None]
            tl.store(output + places, result.to(output.dtype.element_ty), mask=is_value)
        else:
            parts = ((sequence * NUM_KV_HEADS + kv_head) * SPLITS + split) * num_rows + rows
            tl.store(part_maxima + parts, maximum, mask=is_row)
            tl.store(part_totals + parts, total, mask=is_row)
            tl.store(part_outputs + parts[:, None] * HEAD_DIM + dims[None, :], weighted, mask=is_value)


@triton.jit(do_not_specialize=["num_rows"])
def merge_splits(
    output, part_outputs, part_maxima, part_totals, query_starts, sequence_lengths, num_rows,
    WINDOW: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr, SHORT: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
    MIN_SPLIT: tl.constexpr,
):  # fmt: skip
    """One row of one sequence and key/value head, from the splits of :func:`decode_attention`."""
    sequence, kv_head, row = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    query_start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - query_start
    if (num_tokens > SHORT) | (row >= num_tokens * GROUP):
        return
    length = tl.load(sequence_lengths + sequence)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(length - num_tokens - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    size = tl.maximum(tl.cdiv(tl.cdiv(length - low, SPLITS), BLOCK_N) * BLOCK_N, MIN_SPLIT)
    num_splits = tl.cdiv(length - low, size)
    if num_splits == 1:
        return
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, PADDED_DIM)
    parts = ((sequence * NUM_KV_HEADS + kv_head) * SPLITS + splits) * num_rows + row
    is_split = splits < num_splits
    maxima = tl.load(part_maxima + parts, mask=is_split, other=float("-inf"))
    shares = tl.exp2(maxima - tl.max(maxima, axis=0))
    total = tl.sum(shares * tl.load(part_totals + parts, mask=is_split, other=0.0), axis=0)
    is_value = is_split[:, None] & (dims < HEAD_DIM)[None, :]
    weighted = tl.load(part_outputs + parts[:, None] * HEAD_DIM + dims[None, :], mask=is_value, other=0.0)
    result = tl.sum(shares[:, None] * weighted, axis=0) / total
    head = (query_start + row // GROUP).to(tl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + row % GROUP
    tl.store(output + head * HEAD_DIM + dims, result.to(output.dtype.element_ty), mask=dims < HEAD_DIM)
