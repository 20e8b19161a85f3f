// Rows of bf16 inputs against one panel of a dense weight, on matrix tiles (AMX-BF16).
//
// A tile instruction rounds in another order than a vector one, so a single row goes through the tiles as well: each
// row of a tile is summed on its own, and what is beside it does not matter.
#pragma once

#include "dense_rows.h"
#include "tile_session.h"

#if defined(__AMX_BF16__)

namespace {

struct TileRows {
    static constexpr int kRows = 32;  // two tiles
    static constexpr int kRowMultiple = 16;

    // Of the eight tiles, 0 to 3 are for sums, 4 and 5 for inputs, 6 and 7 for weights.
    using Session = WholeTileSession;

    // results [count up to whole tiles][kPanel] = or += rows of x times a panel, over inputs first:end. Rows of x are
    // `stride` values apart.
    static void multiply(const bf16* panel, const bf16* x, int64_t stride, int64_t first, int64_t end, int count,
                         float* results) {
        asm volatile("" ::: "memory");  // the tile instructions do not tell the compiler what they read and write
        if (count > kRowMultiple)
            multiply_tiles<2>(panel, x, stride, first, end, results);
        else
            multiply_tiles<1>(panel, x, stride, first, end, results);
        asm volatile("" ::: "memory");
    }

private:
    // Weights are read past the nearest cache, where the inputs are to stay.
    template <int TILES>
    static void multiply_tiles(const bf16* panel, const bf16* x, int64_t stride, int64_t first, int64_t end,
                               float* results) {
        const bf16 *right = panel + stride * kHalf, *lower = x + stride * kRowMultiple;
        if (first)
            load_sums<TILES>(results);
        else
            zero_sums();
        for (int64_t i = first; i < end; i += kDepth) {
            _tile_loadd(4, x + i, stride * 2);
            _tile_stream_loadd(6, panel + i * kHalf, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_stream_loadd(7, right + i * kHalf, 64);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (TILES == 2) {
                _tile_loadd(5, lower + i, stride * 2);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        store_sums<TILES>(results);
    }

    static void zero_sums() {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }

    template <int TILES>
    static void load_sums(const float* results) {
        _tile_loadd(0, results, kPanel * 4);
        _tile_loadd(1, results + kHalf, kPanel * 4);
        if constexpr (TILES == 2) {
            _tile_loadd(2, results + kRowMultiple * kPanel, kPanel * 4);
            _tile_loadd(3, results + kRowMultiple * kPanel + kHalf, kPanel * 4);
        }
    }

    template <int TILES>
    static void store_sums(float* results) {
        _tile_stored(0, results, kPanel * 4);
        _tile_stored(1, results + kHalf, kPanel * 4);
        if constexpr (TILES == 2) {
            _tile_stored(2, results + kRowMultiple * kPanel, kPanel * 4);
            _tile_stored(3, results + kRowMultiple * kPanel + kHalf, kPanel * 4);
        }
    }
};

template <>
struct DenseRowsOf<bf16> {
    using type = TileRows;
};

}  // namespace

#endif
