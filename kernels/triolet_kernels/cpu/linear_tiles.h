// A panel of a quantised linear layer on matrix tiles (AMX-INT8): 16 rows at a time, one block of inputs to a product.
//
// Bit for bit what the vector code computes: products of codes are exact, and what follows is done in the same order.
// Where the CPU has no tiles this defines the same names, which are then never called.
#pragma once

#include "quantized_rows.h"

namespace {

constexpr int64_t kTileBlockSize = kBlock * kPanel;  // bytes of a block of a panel, one to a code

#if defined(__AMX_INT8__)

constexpr bool kHasTiles = true;

// As ldtilecfg reads it. Tile 0: inputs, 16 rows × 32; tile 1: weights, 8 quads × 16 outputs × 4; tile 2: products.
struct TileShapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

alignas(64) const TileShapes kTileShapes = {1, 0, {}, {kBlock, 64, 64}, {kTileRows, kBlock / 4, kTileRows}};

class TilePanel {
public:
    // With num_blocks 0 it is not to be used. 4-bit codes are spread out to bytes in `scratch`.
    TilePanel(const uint8_t* panel, const WeightFormat& format, int64_t num_blocks, uint8_t* scratch)
        : panel_(panel), format_(format), codes_(panel), block_size_(format.block_size()), is_used_(num_blocks > 0) {
        if (!is_used_) return;
        if (format.bits == 4) {
            for (int64_t block = 0; block < num_blocks; ++block)
                spread(panel + block * format.block_size(), scratch + block * kTileBlockSize);
            codes_ = scratch;
            block_size_ = kTileBlockSize;
        }
        _tile_loadconfig(&kTileShapes);
    }

    ~TilePanel() {
        if (is_used_) _tile_release();
    }

    // results[row][kPanel] for 16 rows
    void multiply(const QuantizedRows& rows, float* results) const {
        for (int64_t half = 0; half < 2; ++half) multiply_half(rows, half, results + half * kLanes);
    }

private:
    static void spread(const uint8_t* packed, uint8_t* codes) {
        const __m512i nibble = _mm512_set1_epi8(15);
        for (int64_t i = 0; i < kTileBlockSize / 2; i += 64) {
            __m512i both = _mm512_loadu_si512(packed + i);
            _mm512_storeu_si512(codes + i, _mm512_and_si512(both, nibble));
            _mm512_storeu_si512(codes + kTileBlockSize / 2 + i, _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble));
        }
    }

    TRIOLET_INLINE void multiply_term(const QuantizedRows& rows, int64_t term, int64_t half, int32_t* products) const {
        asm volatile("" ::: "memory");  // the tile instructions do not tell the compiler what they read
        _tile_zero(2);
        _tile_loadd(0, rows.codes + term * kBlock * kTileRows, kBlock);
        _tile_loadd(1, codes_ + rows.block[term] * block_size_ + half * 64, 128);
        _tile_dpbsud(2, 0, 1);
        _tile_stored(2, products, 64);
    }

    // The products of a term are computed while those of the one before are added up.
    void multiply_half(const QuantizedRows& rows, int64_t half, float* results) const {
        alignas(64) int32_t products[2][kTileRows * kLanes];
        Vec total[kTileRows];
#pragma GCC unroll 16
        for (int row = 0; row < kTileRows; ++row) total[row] = splat(0);
        multiply_term(rows, 0, half, products[0]);
        for (int64_t term = 0; term < *rows.num_terms; ++term) {
            if (term + 1 < *rows.num_terms) multiply_term(rows, term + 1, half, products[(term + 1) % 2]);
            const WeightScales scales(panel_ + rows.block[term] * format_.block_size(), format_, half);
            const int32_t* product = products[term % 2];
#pragma GCC unroll 16
            for (int row = 0; row < kTileRows; ++row)
                total[row] = scales.add_to(total[row], _mm512_load_si512(product + row * kLanes),
                                           splat(rows.steps[term * kTileRows + row]),
                                           splat(rows.sums[term * kTileRows + row]));
        }
#pragma GCC unroll 16
        for (int row = 0; row < kTileRows; ++row) store(results + row * kPanel, total[row]);
    }

    const uint8_t* panel_;
    const WeightFormat& format_;
    const uint8_t* codes_;
    int64_t block_size_;
    bool is_used_;
};

#else

constexpr bool kHasTiles = false;

struct TilePanel {
    TilePanel(const uint8_t*, const WeightFormat&, int64_t, uint8_t*) {}
    void multiply(const QuantizedRows&, float*) const {}
};

#endif

}  // namespace
