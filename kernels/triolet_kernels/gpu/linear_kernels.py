"""The Triton kernels of linear layers: weights dense or in codes, widened as they are read.

A sum over the input is made segment by segment, each from zero, and the segments are added one after the
other. Whether one program does so or each segment has its own makes no difference to the result.

Weights are ``(N, K)``: dense of the type of the inputs, or words of codes with scales and minimums as in
:mod:`triolet_kernels.gpu.quantized_weight`.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["linear", "quantized_row", "sum_segments", "tile_product"]


@triton.jit
def _load_codes(
    weights, scales, minimums, columns, start, end, K,
    BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Values of rows ``columns`` of the weight from ``start``, 0 past ``end``, (BLOCK_N, BLOCK_K) float32."""
    PER_WORD: tl.constexpr = 32 // BITS
    places = start // PER_WORD + tl.arange(0, BLOCK_K // PER_WORD)
    words = tl.load(
        weights + columns[:, None] * (K // PER_WORD) + places[None, :],
        mask=(places < end // PER_WORD)[None, :],
        other=0,
    )
    shifts = tl.arange(0, PER_WORD) * BITS
    codes = (words[:, :, None] >> shifts[None, None, :]) & ((1 << BITS) - 1)
    values = tl.reshape(codes.to(tl.float32), (BLOCK_N, BLOCK_K // GROUP, GROUP))
    groups = start // GROUP + tl.arange(0, BLOCK_K // GROUP)
    is_inside = (groups < end // GROUP)[None, :]
    group_places = columns[:, None] * (K // GROUP) + groups[None, :]
    factors = tl.load(scales + group_places, mask=is_inside, other=0.0).to(tl.float32)
    if minimums is not None:
        lowest = tl.load(minimums + group_places, mask=is_inside, other=0.0).to(tl.float32)
        values = values * factors[:, :, None] + lowest[:, :, None]
    else:
        values = (values - OFFSET) * factors[:, :, None]
    return tl.reshape(values, (BLOCK_N, BLOCK_K))


@triton.jit
def tile_product(
    x, weights, scales, minimums, rows, is_row, columns, begin, end, K,
    BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows ``rows`` of ``x`` times rows ``columns`` of the weight, inputs ``begin`` to ``end`` → float32.

    ``scales`` None is a dense weight. Both kinds of rows are int64 and exist.
    """
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(begin, end, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        is_input = (inputs < end)[None, :]
        left = tl.load(x + rows[:, None] * K + inputs[None, :], mask=is_row[:, None] & is_input, other=0.0)
        if scales is None:
            right = tl.load(weights + columns[:, None] * K + inputs[None, :], mask=is_input, other=0.0)
        else:
            values = _load_codes(
                weights, scales, minimums, columns, start, end, K, BITS, GROUP, OFFSET, BLOCK_N, BLOCK_K
            )
            right = values.to(left.dtype)
        total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["num_rows"])  # compiled once, not for some batches again
def linear(
    x, weights, scales, minimums, bias, output, num_rows, N, K, segment,
    BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, IS_SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of rows, tiles of outputs, segments if split); split, the output is (segments, rows, N)."""
    row_ids = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output_ids = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row, is_output = row_ids < num_rows, output_ids < N
    rows = tl.where(is_row, row_ids, 0).to(tl.int64)
    columns = tl.where(is_output, output_ids, 0).to(tl.int64)
    is_inside = is_row[:, None] & is_output[None, :]
    if IS_SPLIT:
        part = tl.program_id(2)
        total = tile_product(
            x, weights, scales, minimums, rows, is_row, columns,
            part * segment, tl.minimum((part + 1) * segment, K), K,
            BITS, GROUP, OFFSET, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        output += part.to(tl.int64) * num_rows * N
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for begin in range(0, K, segment):
            total += tile_product(
                x, weights, scales, minimums, rows, is_row, columns,
                begin, tl.minimum(begin + segment, K), K,
                BITS, GROUP, OFFSET, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        if bias is not None:
            total += tl.load(bias + columns)[None, :]
    places = output + rows[:, None] * N + columns[None, :]
    tl.store(places, total.to(output.dtype.element_ty), mask=is_inside)


@triton.jit
def quantized_row(
    x, weights, scales, minimums, output, N, K, segment,
    BITS: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One row. Grid (tiles of outputs, segments); the output is ``(segments, N)`` float32.

    Products are made where the weights come in: matrix units would have them carried through shared memory.
    """
    output_ids = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_output = output_ids < N
    columns = tl.where(is_output, output_ids, 0).to(tl.int64)
    part = tl.program_id(1)
    end = tl.minimum((part + 1) * segment, K)
    totals = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for start in range(part * segment, end, BLOCK_K):
        inputs = start + tl.arange(0, BLOCK_K)
        row = tl.load(x + inputs, mask=inputs < end, other=0.0).to(tl.float32)
        totals += row[None, :] * _load_codes(
            weights, scales, minimums, columns, start, end, K, BITS, GROUP, OFFSET, BLOCK_N, BLOCK_K
        )
    tl.store(output + part.to(tl.int64) * N + columns, tl.sum(totals, axis=1), mask=is_output)


@triton.jit
def sum_segments(parts, bias, output, num_segments, size, N, BLOCK: tl.constexpr):
    """``parts (segments, size)`` float32, ``size`` = rows × N → their sums, plus the bias, ``(size,)``."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = places < size
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    sources = parts + places
    for _ in range(num_segments):
        total += tl.load(sources, mask=is_inside, other=0.0)
        sources += size
    if bias is not None:
        total += tl.load(bias + places % N, mask=is_inside, other=0.0)
    tl.store(output + places, total.to(output.dtype.element_ty), mask=is_inside)
