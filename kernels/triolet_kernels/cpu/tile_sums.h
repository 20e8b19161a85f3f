// Sums of up to 32 rows times a panel of 32 outputs, in four matrix tiles (AMX-BF16).
//
// Knows nothing of how weights are kept. Every sum is over inputs in order, however its blocks are cut into runs.
#pragma once

#include "panel_codes.h"
#include "tile_session.h"

#if defined(__AMX_BF16__)

namespace {

constexpr int64_t kRowGroup = 2 * kTileRows;  // rows that go through a panel together

// In the tiles 0 to 3; 2 and 3 are for the rows beyond the first 16, if there are any.
template <bool HAS_SECOND>
struct TileSums {
    static constexpr int64_t kRowBytes = kPanel * sizeof(float), kHalf = kPanel / 2, kSecond = kTileRows * kPanel;

    static TRIOLET_INLINE void clear() {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (HAS_SECOND) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }

    static TRIOLET_INLINE void load(const float* sums) {
        _tile_loadd(0, sums, kRowBytes);
        _tile_loadd(1, sums + kHalf, kRowBytes);
        if constexpr (HAS_SECOND) {
            _tile_loadd(2, sums + kSecond, kRowBytes);
            _tile_loadd(3, sums + kSecond + kHalf, kRowBytes);
        }
    }

    static TRIOLET_INLINE void save(float* sums) {
        _tile_stored(0, sums, kRowBytes);
        _tile_stored(1, sums + kHalf, kRowBytes);
        if constexpr (HAS_SECOND) {
            _tile_stored(2, sums + kSecond, kRowBytes);
            _tile_stored(3, sums + kSecond + kHalf, kRowBytes);
        }
        asm volatile("" ::: "memory");  // tile instructions do not tell the compiler what they read and write
    }

    // A block's share of one of kSteps steps, so that spreading out another goes on in between.
    static TRIOLET_INLINE void add_step(int step, const bf16* x, int64_t width, const SpreadBlock& block) {
        const int64_t stride = width * int64_t(sizeof(bf16));
        if (step == 0) _tile_stream_loadd(4, x, stride);
        if (step == 1) _tile_loadd(6, block.tiles[0], 64);
        if (step == 3) _tile_dpbf16ps(0, 4, 6);
        if (step == 5) _tile_loadd(7, block.tiles[1], 64);
        if (step == 7) _tile_dpbf16ps(1, 4, 7);
        if constexpr (HAS_SECOND) {
            if (step == 2) _tile_stream_loadd(5, x + kTileRows * width, stride);
            if (step == 5) _tile_dpbf16ps(2, 5, 6);
            if (step == 7) _tile_dpbf16ps(3, 5, 7);
        }
    }

    // A run of blocks, with beside() called after each. Weights pass by; the inputs, which the next panel wants again,
    // keep their place in the nearest cache.
    template <class Beside>
    static TRIOLET_INLINE void add(const bf16* x, int64_t width, const SpreadBlock* blocks, int64_t num_blocks,
                                   const Beside& beside) {
        const int64_t stride = width * int64_t(sizeof(bf16));
        asm volatile("" ::: "memory");
        for (int64_t block = 0; block < num_blocks; ++block, x += kBlock) {
            _tile_loadd(4, x, stride);
            _tile_stream_loadd(6, blocks[block].tiles[0], 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_stream_loadd(7, blocks[block].tiles[1], 64);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (HAS_SECOND) {
                _tile_loadd(5, x + kTileRows * width, stride);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            beside();
        }
    }
};

}  // namespace

#endif
