// A panel of a quantised linear layer on matrix tiles (AMX-INT8): 16 rows at a time, one block of inputs to a product.
//
// Bit for bit what the vector code computes: products of codes are exact, and what follows is done in the same order.
// Where the CPU has no tiles this defines the same names, which are then never called.
#pragma once

#include "quantized_rows.h"

namespace {

// With fewer rows, spreading the weights out for the tiles costs more than they save.
constexpr int64_t kMinRowsForTiles = 48;

// A block of a panel as the tiles take it.
struct alignas(64) TileBlock {
    uint8_t codes[2][kBlock / 4][64];  // [half][quad][16 outputs × 4], in their unit
    WeightScales scales[2];
};

#if defined(__AMX_INT8__)

constexpr bool kHasTiles = true;

// As ldtilecfg reads it. Tiles 0 and 1 are for sums, 2 and 3 for inputs (16 rows × 32), 4 and 5 for weights (8 quads ×
// 16 outputs × 4).
struct TileShapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

constexpr uint8_t kQuads = kBlock / 4;
alignas(64) const TileShapes kTileShapes = {
    1, 0, {}, {64, 64, kBlock, kBlock, 64, 64}, {kTileRows, kTileRows, kTileRows, kTileRows, kQuads, kQuads}};

// Begins the sums of a term, from zero; an instruction names its tiles itself.
template <int SET>
TRIOLET_INLINE void start_product(const int8_t* inputs, const TileBlock& weights, int64_t half) {
    if constexpr (SET == 0) {
        _tile_zero(0);
        _tile_loadd(2, inputs, kBlock);
        _tile_loadd(4, weights.codes[half], 64);
        _tile_dpbsud(0, 2, 4);
    } else {
        _tile_zero(1);
        _tile_loadd(3, inputs, kBlock);
        _tile_loadd(5, weights.codes[half], 64);
        _tile_dpbsud(1, 3, 5);
    }
}

class TilePanel {
public:
    // With num_blocks 0 it is not to be used. `scratch` has room for so many blocks.
    TilePanel(const uint8_t* panel, const WeightFormat& format, int64_t num_blocks, TileBlock* scratch)
        : blocks_(scratch), is_used_(num_blocks > 0) {
        if (!is_used_) return;
        for (int64_t block = 0; block < num_blocks; ++block) {
            const uint8_t* source = panel + block * format.block_size();
            spread(source, format.bits, scratch[block]);
            for (int64_t half = 0; half < 2; ++half) scratch[block].scales[half] = {source, format, half};
        }
        asm volatile("" ::: "memory");  // the tile instructions do not tell the compiler what they read
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
    static void spread(const uint8_t* packed, int64_t bits, TileBlock& block) {
        const __m512i upper = _mm512_set1_epi8(-16);
        for (int64_t quad = 0; quad < bits; ++quad) {
            for (int64_t half = 0; half < 2; ++half) {
                __m512i codes = _mm512_loadu_si512(packed + quad * 128 + half * 64);
                if (bits == 4) {
                    _mm512_store_si512(block.codes[half][quad + 4], _mm512_and_si512(codes, upper));
                    codes = _mm512_and_si512(_mm512_slli_epi16(codes, 4), upper);
                }
                _mm512_store_si512(block.codes[half][quad], codes);
            }
        }
    }

    const TileBlock& block_of(const QuantizedRows& rows, int64_t term) const { return blocks_[rows.block[term]]; }

    template <int SET>
    TRIOLET_INLINE void start(const QuantizedRows& rows, int64_t term, int64_t half) const {
        if (term < *rows.num_terms)
            start_product<SET>(rows.codes + term * kBlock * kTileRows, block_of(rows, term), half);
    }

    TRIOLET_INLINE void add_up(const QuantizedRows& rows, int64_t term, int64_t half, const int32_t* sums,
                               Vec (&total)[kTileRows]) const {
        const WeightScales scales = block_of(rows, term).scales[half];
        const __m512i start = _mm512_set1_epi32(kSumStart);
#pragma GCC unroll 16
        for (int row = 0; row < kTileRows; ++row)
            total[row] = scales.add_to(total[row], _mm512_add_epi32(_mm512_load_si512(sums + row * kLanes), start),
                                       splat(rows.steps[term * kTileRows + row]),
                                       splat(rows.sums[term * kTileRows + row]));
    }

    // While a term is added up, the sums of the next one leave their tile and those of the one after are begun.
    void multiply_half(const QuantizedRows& rows, int64_t half, float* results) const {
        alignas(64) int32_t sums[2][kTileRows * kLanes];
        Vec total[kTileRows];
#pragma GCC unroll 16
        for (int row = 0; row < kTileRows; ++row) total[row] = splat(0);
        start<0>(rows, 0, half);
        for (int64_t term = 0; term < *rows.num_terms; term += 2) {
            start<1>(rows, term + 1, half);
            _tile_stored(0, sums[0], 64);
            if (term) add_up(rows, term - 1, half, sums[1], total);
            start<0>(rows, term + 2, half);
            if (term + 1 < *rows.num_terms) _tile_stored(1, sums[1], 64);
            add_up(rows, term, half, sums[0], total);
        }
        if (*rows.num_terms % 2 == 0) add_up(rows, *rows.num_terms - 1, half, sums[1], total);
#pragma GCC unroll 16
        for (int row = 0; row < kTileRows; ++row) store(results + row * kPanel, total[row]);
    }

    const TileBlock* blocks_;
    bool is_used_;
};

#else

constexpr bool kHasTiles = false;

struct TilePanel {
    TilePanel(const uint8_t*, const WeightFormat&, int64_t, TileBlock*) {}
    void multiply(const QuantizedRows&, float*) const {}
};

#endif

}  // namespace
