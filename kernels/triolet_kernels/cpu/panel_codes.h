// Quantised weights spread out as bf16, the way matrix tiles take them.
//
// A panel is 32 outputs; its inputs come in blocks of 32. A block in memory: codes, then float16 scales [32], then
// float16 minimums [32] if there are any: weight = scale * code + minimum. Codes of 4 bits lie [half][4 runs][16
// outputs][2 inputs][4 nibbles]: nibble n of run r belongs to the pair of inputs 4 r + n. Codes of 8 bits are signed
// and lie [half][16 pairs][16 outputs][2 inputs]. Needs AVX512-FP16, which every CPU with matrix tiles has. Knows
// nothing of how the products are computed.
#pragma once

#include "simd.h"

#if defined(__AVX512FP16__)

namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kPanel = 32;
constexpr int kSteps = 8;  // that spreading out a block is done in

// A block of a panel: two tiles of 16 pairs of inputs × 16 outputs.
struct alignas(64) SpreadBlock {
    bf16 tiles[2][16][32];
};

// What lies in 32 lanes for 16 outputs: each value twice, for both inputs of a pair.
TRIOLET_INLINE __m512h twice(__m512i values, int half) {
    const __m512i lanes = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,
                                           4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    return (__m512h)_mm512_permutexvar_epi16(_mm512_add_epi16(lanes, _mm512_set1_epi16(int16_t(16 * half))), values);
}

// float16 rounded to the nearest bf16 of 2^-16 times its value, three instructions cheaper than by way of float32: the
// fraction loses three bits, and the exponent is put 96 below the bias of bf16 instead of 112. What is below the normal
// float16, zero included, becomes ±2^-31: packed scales are large enough for that not to matter.
TRIOLET_INLINE __m512i shrink(__m512h value) {
    __m512i rounded = _mm512_mulhrs_epi16((__m512i)value, _mm512_set1_epi16(1 << 12));
    constexpr int kAAndBOrC = 0xea;
    return _mm512_ternarylogic_epi32(rounded, _mm512_set1_epi16(int16_t(0x8fff)), _mm512_set1_epi16(0x3000), kAAndBOrC);
}

// Weights of 4 bits. Without minimums, codes stand for -8 to 7.
template <bool HAS_MINIMUMS>
struct NibbleCodes {
    static constexpr int64_t kCodesSize = kPanel * kBlock / 2;
    static constexpr int64_t kSize = kCodesSize + kPanel * 2 * (HAS_MINIMUMS ? 2 : 1);

    // beside(step) is called after each of the steps.
    template <class Beside>
    static TRIOLET_INLINE void spread(const uint8_t* block, SpreadBlock& target, const Beside& beside) {
        const __m512i scales = _mm512_loadu_si512(block + kCodesSize);
        const __m512i minimums = HAS_MINIMUMS ? _mm512_loadu_si512(block + kCodesSize + kPanel * 2) : scales;
        const __m512h values = values_of_codes();
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m512h scale = twice(scales, half), minimum = twice(minimums, half);
#pragma GCC unroll 4
            for (int run = 0; run < 4; ++run) {
                const uint8_t* source = block + (half * 4 + run) * 64;
#pragma GCC unroll 4
                for (int nibble = 0; nibble < 4; ++nibble) {
                    // Of each index the five lowest bits count, and the values repeat after sixteen. Half of the
                    // shifts are done by loading from one byte further on.
                    __m512i nibbles = _mm512_loadu_si512(source + nibble / 2);
                    if (nibble % 2) nibbles = _mm512_srli_epi16(nibbles, 4);
                    __m512h value = (__m512h)_mm512_permutexvar_epi16(nibbles, (__m512i)values);
                    value = HAS_MINIMUMS ? _mm512_fmadd_ph(value, scale, minimum) : _mm512_mul_ph(value, scale);
                    _mm512_store_si512(target.tiles[half][run * 4 + nibble], shrink(value));
                }
                beside(half * 4 + run);
            }
        }
    }

    static TRIOLET_INLINE __m512h values_of_codes() {
        const __m512i lanes = _mm512_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11,
                                               10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        return _mm512_cvtepi16_ph(HAS_MINIMUMS ? lanes : _mm512_sub_epi16(lanes, _mm512_set1_epi16(8)));
    }
};

// Weights of 8 bits.
struct ByteCodes {
    static constexpr int64_t kCodesSize = kPanel * kBlock;
    static constexpr int64_t kSize = kCodesSize + kPanel * 2;

    template <class Beside>
    static TRIOLET_INLINE void spread(const uint8_t* block, SpreadBlock& target, const Beside& beside) {
        const __m512i scales = _mm512_loadu_si512(block + kCodesSize);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m512h scale = twice(scales, half);
#pragma GCC unroll 16
            for (int pair = 0; pair < 16; ++pair) {
                const uint8_t* source = block + (half * 16 + pair) * 32;
                __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
                __m512h value = _mm512_mul_ph(_mm512_cvtepi16_ph(codes), scale);
                _mm512_store_si512(target.tiles[half][pair], shrink(value));
                if (pair % 4 == 3) beside(half * 4 + pair / 4);
            }
        }
    }
};

}  // namespace

#endif
