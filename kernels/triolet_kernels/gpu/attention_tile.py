"""What both attention kernels do with a run of keys: softmax on the way (Milakov and Gimelshein 2018).

A row's result depends on its own query and keys, and on where runs and tiles begin, but on nothing beside it:
a tile that it does not see leaves it as it was, to the bit, and a tile that it sees whole is computed in the
same way with a mask as without. Must not know where the rows of queries come from.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["LOWEST", "attend_run", "attend_tile", "read_tile"]

LOWEST = tl.constexpr(-1e30)
"""What a maximum starts with: finite, so that a row which sees nothing yet is 0 and not NaN."""


@triton.jit
def read_tile(
    cache, entries, dims, is_there, HEAD_DIM: tl.constexpr, IS_MASKED: tl.constexpr, dtype: tl.constexpr
):
    """Values ``dims`` of the cache's ``entries``, 0 where they are not there, in ``dtype``."""
    places = cache + entries + dims
    if IS_MASKED:
        values = tl.load(places, mask=is_there & (dims < HEAD_DIM), other=0.0)
    else:
        values = tl.load(places, mask=dims < HEAD_DIM, other=0.0)
    return values.to(dtype)


@triton.jit
def attend_tile(
    state, query, positions, start, first, end,
    key_cache, value_cache, table, kv_head, scale, inverse_cap,
    WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
    IS_MASKED: tl.constexpr,
):  # fmt: skip
    """``state`` after BLOCK_N keys from ``start`` on, of which ``first:end`` may be read."""
    maximum, total, output = state
    keys = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, PADDED_DIM)
    is_there = (keys >= first) & (keys < end)
    if IS_MASKED:
        blocks = tl.load(table + keys // BLOCK_SIZE, mask=is_there, other=0)
    else:
        blocks = tl.load(table + keys // BLOCK_SIZE)
    entries = ((blocks.to(tl.int64) * NUM_KV_HEADS + kv_head) * BLOCK_SIZE + keys % BLOCK_SIZE) * HEAD_DIM
    key = read_tile(
        key_cache, entries[None, :], dims[:, None], is_there[None, :], HEAD_DIM, IS_MASKED, query.dtype
    )
    scores = tl.dot(query, key, input_precision=PRECISION)
    if HAS_CAP:
        # tanh(x) = 2 sigmoid(2 x) - 1
        scores = 2.0 * tl.sigmoid(2.0 * inverse_cap * scores) - 1.0
    if IS_MASKED:
        distances = positions[:, None] - keys[None, :]
        is_visible = (distances >= 0) & is_there[None, :]
        if WINDOW > 0:
            is_visible = is_visible & (distances < WINDOW)
        scores = tl.where(is_visible, scores, float("-inf"))
    # The mask comes before the scale, so that multiplication and subtraction fuse with a mask and without.
    higher = tl.maximum(maximum, tl.max(scores, axis=1) * scale)
    weights = tl.exp2(scores * scale - higher[:, None])
    shrink = tl.exp2(maximum - higher)
    value = read_tile(
        value_cache, entries[:, None], dims[None, :], is_there[:, None], HEAD_DIM, IS_MASKED, query.dtype
    )
    output = tl.dot(weights.to(query.dtype), value, output * shrink[:, None], input_precision=PRECISION)
    return higher, total * shrink + tl.sum(weights, axis=1), output


@triton.jit
def attend_run(
    query, positions, low, high, first, end, lowest_position, highest_position,
    key_cache, value_cache, table, kv_head, scale, inverse_cap,
    WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of the rows of ``query (M, PADDED_DIM)`` over keys ``low:high``; ``low`` starts a tile.

    → highest score times ``scale``, sum of weights, weighted sum of values, for each row. Scores are powers
    of two: ``scale`` holds the logarithm of e. Only keys from ``first`` to ``end`` may be read.
    """
    state = (
        tl.full((query.shape[0],), LOWEST, tl.float32),
        tl.zeros((query.shape[0],), tl.float32),
        tl.zeros((query.shape[0], PADDED_DIM), tl.float32),
    )
    # Tiles before whole_end are not past any row, those from whole_start on not out of any row's window.
    whole_end = tl.maximum(
        tl.minimum((lowest_position + 1) // BLOCK_N * BLOCK_N, high // BLOCK_N * BLOCK_N), low
    )
    whole_start = low
    if WINDOW > 0:
        left = tl.maximum(highest_position - WINDOW + 1, 0)
        whole_start = tl.minimum(tl.maximum(tl.cdiv(left, BLOCK_N) * BLOCK_N, low), whole_end)
        for start in tl.range(low, whole_start, BLOCK_N, num_stages=1):
            state = attend_tile(
                state, query, positions, start, first, end,
                key_cache, value_cache, table, kv_head, scale, inverse_cap,
                WINDOW, HAS_CAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, PRECISION, BLOCK_N, True,
            )  # fmt: skip
    for start in tl.range(whole_start, whole_end, BLOCK_N):
        state = attend_tile(
            state, query, positions, start, first, end,
            key_cache, value_cache, table, kv_head, scale, inverse_cap,
            WINDOW, HAS_CAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, PRECISION, BLOCK_N, False,
        )  # fmt: skip
    for start in tl.range(whole_end, high, BLOCK_N, num_stages=1):
        state = attend_tile(
            state, query, positions, start, first, end,
            key_cache, value_cache, table, kv_head, scale, inverse_cap,
            WINDOW, HAS_CAP, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, PADDED_DIM, PRECISION, BLOCK_N, True,
        )  # fmt: skip
    return state
