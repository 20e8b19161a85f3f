"""Attention of queries of any length over the paged cache, one tile of queries for each program.

Keys are taken in tiles that begin at multiples of BLOCK_N, in order, so the result for a token is the same
whatever the batch, and however its prompt was cut into chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triolet_kernels.gpu.attention_tile import attend_run

__all__ = ["find_sequence", "prefill_attention"]


@triton.jit
def find_sequence(query_starts, tile, num_sequences, TILE: tl.constexpr):
    """The sequence that a tile of TILE tokens belongs to.

    Sequence s has the tiles from ``query_starts[s] // TILE + s`` on: enough for any length and start.
    """
    low, high = 0, num_sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_starts + middle) // TILE + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit(do_not_specialize=["num_sequences", "table_stride"])
def prefill_attention(
    query, key_cache, value_cache, output, block_tables, query_starts, sequence_lengths,
    num_sequences, table_stride, scale, inverse_cap,
    WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PRECISION: tl.constexpr,
    SHORT: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """TILE tokens of one sequence and one key/value head; sequences with up to SHORT tokens are left out.

    Rows are tokens × GROUP query heads, so that all heads of a group share the keys that are read.
    """
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = find_sequence(query_starts, tile, num_sequences, TILE)
    query_start = tl.load(query_starts + sequence)
    num_tokens = tl.load(query_starts + sequence + 1) - query_start
    token = (tile - query_start // TILE - sequence) * TILE
    if (token >= num_tokens) | (num_tokens <= SHORT):
        return
    length = tl.load(sequence_lengths + sequence)
    rows, dims = tl.arange(0, BLOCK_M), tl.arange(0, PADDED_DIM)
    tokens = token + rows // GROUP
    is_row = (rows < TILE * GROUP) & (tokens < num_tokens)
    first_position = length - num_tokens + token
    last_position = tl.minimum(first_position + TILE, length) - 1
    positions = tl.where(is_row, length - num_tokens + tokens, -1)
    heads = (query_start + tokens).to(tl.int64) * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + rows % GROUP
    places = heads[:, None] * HEAD_DIM + dims[None, :]
    is_value = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    queries = tl.load(query + places, mask=is_value, other=0.0)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(first_position - WINDOW + 1, 0)
    _, total, weighted = attend_run(
        queries, positions, first // BLOCK_N * BLOCK_N, last_position + 1, first, last_position + 1,
        first_position, last_position,
        key_cache, value_cache, block_tables + sequence.to(tl.int64) * table_stride, kv_head,
        scale, inverse_cap,
        WINDOW, HAS_CAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, PRECISION, BLOCK_N,
    )  # fmt: skip
    result = weighted / total[:, None]
    tl.store(output + places, result.to(output.dtype.element_ty), mask=is_value)
