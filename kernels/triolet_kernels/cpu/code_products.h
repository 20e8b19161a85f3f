// Products of one block of weight codes and one block of input codes, exact in int32.
//
// With AVX512-VNNI, and with AVX2 in 16-bit steps. Knows nothing of scales.
#pragma once

#include "quantized_rows.h"

namespace {

#if defined(__AVX512VNNI__)

using Codes = __m512i;

TRIOLET_INLINE Codes load_codes(const uint8_t* source) { return _mm512_loadu_si512(source); }
TRIOLET_INLINE Codes splat_quad(const int8_t* source) {
    int32_t quad;
    memcpy(&quad, source, 4);
    return _mm512_set1_epi32(quad);
}
TRIOLET_INLINE Vec as_floats(Codes sums) { return _mm512_castsi512_ps(sums); }

template <int ROWS>
TRIOLET_INLINE void add_quads(Codes (&sum)[ROWS][2], Codes left, Codes right, const int8_t* codes) {
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) {
        Codes quad = splat_quad(codes + row * 4);
        sum[row][0] = _mm512_dpbusd_epi32(sum[row][0], left, quad);
        sum[row][1] = _mm512_dpbusd_epi32(sum[row][1], right, quad);
    }
}

// sum[row][vector] = kSumStart + codes of two vectors of weights, in their unit, · codes of the inputs
template <int BITS, int ROWS>
TRIOLET_INLINE void multiply_block(Codes (&sum)[ROWS][2], const uint8_t* weights, const int8_t* codes) {
    constexpr int kQuad = 4 * ROWS;
    const Codes upper = _mm512_set1_epi8(-16);
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) sum[row][0] = sum[row][1] = _mm512_set1_epi32(kSumStart);
#pragma GCC unroll 8
    for (int quad = 0; quad < BITS; ++quad) {
        Codes left = load_codes(weights + quad * 128), right = load_codes(weights + quad * 128 + 64);
        if constexpr (BITS == 8) {
            add_quads<ROWS>(sum, left, right, codes + quad * kQuad);
        } else {
            add_quads<ROWS>(sum, _mm512_and_si512(_mm512_slli_epi16(left, 4), upper),
                            _mm512_and_si512(_mm512_slli_epi16(right, 4), upper), codes + quad * kQuad);
            add_quads<ROWS>(sum, _mm512_and_si512(left, upper), _mm512_and_si512(right, upper),
                            codes + (quad + 4) * kQuad);
        }
    }
}

#else

using Codes = __m256i;

TRIOLET_INLINE Codes load_codes(const uint8_t* source) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}
TRIOLET_INLINE Codes splat_quad(const int8_t* source) {
    int32_t quad;
    memcpy(&quad, source, 4);
    return _mm256_set1_epi32(quad);
}
TRIOLET_INLINE Vec as_floats(Codes sums) { return _mm256_castsi256_ps(sums); }

// Sums of a block's products stay below 2^15 in their two halves: 16 products of at most 15 × 127.
template <int ROWS>
TRIOLET_INLINE void add_nibbles(Codes (&sum)[ROWS][2], const uint8_t* weights, const int8_t* codes) {
    const Codes lower = _mm256_set1_epi8(15);
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; ++vector) {
        Codes both = load_codes(weights + vector * 32);
        Codes low = _mm256_and_si256(both, lower), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), lower);
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; ++row) {
            Codes first = _mm256_maddubs_epi16(low, splat_quad(codes + row * 4));
            Codes second = _mm256_maddubs_epi16(high, splat_quad(codes + (4 * ROWS + row) * 4));
            sum[row][vector] = _mm256_add_epi16(sum[row][vector], _mm256_add_epi16(first, second));
        }
    }
}

// Codes have an offset of 128 in memory. The instruction wants one side unsigned: signs move to the other.
template <int ROWS>
TRIOLET_INLINE void add_bytes(Codes (&sum)[ROWS][2], const uint8_t* weights, const int8_t* codes) {
    const Codes ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int vector = 0; vector < 2; ++vector) {
        Codes weight = _mm256_xor_si256(load_codes(weights + vector * 32), _mm256_set1_epi8(-128));
        Codes size = _mm256_abs_epi8(weight);
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; ++row) {
            Codes pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(splat_quad(codes + row * 4), weight));
            sum[row][vector] = _mm256_add_epi32(sum[row][vector], _mm256_madd_epi16(pairs, ones));
        }
    }
}

template <int BITS, int ROWS>
TRIOLET_INLINE void multiply_block(Codes (&sum)[ROWS][2], const uint8_t* weights, const int8_t* codes) {
    const Codes start = _mm256_set1_epi32(kSumStart);
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; ++row) sum[row][0] = sum[row][1] = BITS == 8 ? start : _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int quad = 0; quad < BITS; ++quad) {
        if constexpr (BITS == 8)
            add_bytes<ROWS>(sum, weights + quad * 128, codes + quad * 4 * ROWS);
        else
            add_nibbles<ROWS>(sum, weights + quad * 128, codes + quad * 4 * ROWS);
    }
    if constexpr (BITS == 8) return;
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; ++row)
        for (int vector = 0; vector < 2; ++vector)
            sum[row][vector] = _mm256_add_epi32(_mm256_madd_epi16(sum[row][vector], _mm256_set1_epi16(1)), start);
}

#endif

}  // namespace
