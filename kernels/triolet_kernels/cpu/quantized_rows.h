// Inputs of a linear layer rounded to int8 in blocks of 32, and where a weight's codes and scales lie.
//
// Only for AVX512-VNNI and for AVX2. Knows nothing of how the products are computed.
#pragma once

#include "simd.h"

namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kPanel = 32;                 // outputs that are computed together
constexpr int kVectors = int(kBlock / kLanes);  // that hold a block of inputs, or one value for each output of a panel
constexpr int64_t kScalesSize = kPanel * 2;

#if defined(__AVX512VNNI__)
constexpr int kRows = 6;            // rows × 2 vectors, of int32 and of float32, fit in the registers
constexpr float kNibbleUnit = 16;   // 4-bit codes are multiplied in the upper half of a byte
constexpr bool kHasSignedBytes = false;
#else
constexpr int kRows = 4;            // rows × 2 vectors of int16 do
constexpr float kNibbleUnit = 1;
constexpr bool kHasSignedBytes = true;  // 8-bit codes are multiplied as what they stand for
#endif

// A block whose step exceeds this share of its row's root mean square has an outlier that drowns its other
// values. Such blocks, a few in a hundred, are followed by a second term for what the first rounded away: that
// nearly halves the divergence from the unquantised model and costs next to nothing.
constexpr float kRefineAbove = 0.06f;
constexpr float kRefinement = 254.0f;  // steps of the second term in one of the first
constexpr float kSmallestStep = 1e-30f;

// A panel's block in memory: codes [quads of inputs][2][16 outputs][4], then float16 scales [2][16], then minimums
// likewise if there are any. A byte of 4-bit codes holds inputs i and i + 16 of the block.
struct WeightFormat {
    int64_t bits;
    float offset;  // minimum = -offset * scale where minimums are not kept
    bool has_minimums;

    int64_t codes_size() const { return kPanel * kBlock * bits / 8; }
    int64_t block_size() const { return codes_size() + kScalesSize * (has_minimums ? 2 : 1); }
    float code_unit() const { return bits == 4 ? kNibbleUnit : 1; }
    float code_offset() const { return bits == 8 && kHasSignedBytes ? 0 : offset; }
};

// Sums of products of codes start at this integer, whose bits are those of the float 1.5 × 2^23: read as a float, a
// sum of up to ±2^22 is that float plus the sum, exactly. That saves an instruction to convert each.
constexpr int32_t kSumStart = 0x4b400000;
constexpr float kSumStartAsFloat = 12582912.0f;

// Scales and minimums of one vector of outputs.
struct WeightScales {
    Vec scale, minimum, start;  // of a unit of the products, of a unit of the inputs, what kSumStart amounts to

    TRIOLET_INLINE WeightScales(const uint8_t* block, const WeightFormat& format, int64_t vector) {
        const uint8_t* source = block + format.codes_size() + 2 * kLanes * vector;
        Vec full = load_half(source);
        minimum = format.has_minimums ? load_half(source + kScalesSize) : mul(full, splat(-format.code_offset()));
        scale = mul(full, splat(1 / format.code_unit()));
        start = mul(scale, splat(-kSumStartAsFloat));
    }

    static TRIOLET_INLINE Vec load_half(const uint8_t* source) {
#if defined(__AVX512VNNI__)
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
#else
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
#endif
    }

    // total + one term: its products of codes, from kSumStart on and read as floats, put back in scale. kSumStart
    // cancels out up to some hundredths of a scale, times the step: far below what the rounding of inputs costs.
    TRIOLET_INLINE Vec add_to(Vec total, Vec products, Vec step, Vec sum) const {
        Vec value = fma(products, scale, fma(minimum, sum, start));
        return fma(value, step, total);
    }
};

// A group of rows as int8: a list of terms, each block of its inputs in order, some of them twice. Rows that need
// no second term have zeros in it, which add exactly nothing.
struct QuantizedRows {
    int8_t* codes;   // [term][8 quads][rows][4]
    float* steps;    // [term][rows]
    float* sums;     // [term][rows]: of the codes
    int32_t* block;  // [term]: which block of the weights it goes with
    int32_t* num_terms;

    // Where group `index` of all has its part.
    QuantizedRows group(int64_t index, int64_t width) const {
        int64_t max_terms = 2 * width / kBlock, first = index * kRows;
        return {codes + 2 * first * width, steps + first * max_terms, sums + first * max_terms,
                block + index * max_terms, num_terms + index};
    }
};

// Rounds a block times `factor` to int8 and puts its codes down, a quad every `stride` bytes; returns their sum.
TRIOLET_INLINE int round_block(const Vec (&values)[kVectors], float factor, int8_t* codes, int64_t stride) {
#if defined(__AVX512VNNI__)
    __m512i first = _mm512_cvtps_epi32(mul(values[0], splat(factor)));
    __m512i second = _mm512_cvtps_epi32(mul(values[1], splat(factor)));
    __m128i bytes[2] = {_mm512_cvtsepi32_epi8(first), _mm512_cvtsepi32_epi8(second)};
    __m256i all = _mm256_set_m128i(bytes[1], bytes[0]);
    __m256i places = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(int(stride)));
    _mm256_i32scatter_epi32(codes, places, all, 1);
    // Of the bytes: what a NaN is rounded to would run over.
    return _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_cvtepi8_epi32(bytes[0]), _mm512_cvtepi8_epi32(bytes[1])));
#else
    __m256i rounded[kVectors], sum = _mm256_setzero_si256();
    for (int v = 0; v < kVectors; ++v) {
        rounded[v] = _mm256_cvtps_epi32(mul(values[v], splat(factor)));
        sum = _mm256_add_epi32(sum, rounded[v]);
    }
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(rounded[0], rounded[1]),
                                       _mm256_packs_epi32(rounded[2], rounded[3]));
    int32_t quads[kBlock / 4], sums[kLanes];
    memcpy(quads, &bytes, sizeof quads);
    memcpy(sums, &sum, sizeof sums);
    // Packing has put the quads in this order.
    constexpr int kOrder[kBlock / 4] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int quad = 0; quad < kBlock / 4; ++quad) memcpy(codes + quad * stride, quads + kOrder[quad], 4);
    uint32_t total = 0;  // what a NaN is rounded to may run over
    for (int lane = 0; lane < kLanes; ++lane) total += uint32_t(sums[lane]);
    return int32_t(total);
#endif
}

inline float root_mean_square(const bf16* x, int64_t size) {
    Vec sum = splat(0);
    for (int64_t i = 0; i < size; i += kLanes) sum = fma(load(x + i), load(x + i), sum);
    return __builtin_sqrtf(sum_lanes(sum) / float(size));
}

// One row's part of a term.
TRIOLET_INLINE void put_term(const QuantizedRows& group, int64_t term, int64_t row, int64_t count, float step,
                             const Vec (&values)[kVectors]) {
    int8_t* codes = group.codes + term * kBlock * count + row * 4;
    int sum = round_block(values, step > 0 ? 1 / step : 0, codes, count * 4);
    group.steps[term * count + row] = step;
    group.sums[term * count + row] = float(sum);
}

// What is left of x when it is rounded to a multiple of step; x / step is 127 at most.
TRIOLET_INLINE Vec remainder(Vec x, float step) {
    Vec rounded = sub(add(mul(x, splat(1 / step)), splat(kSumStartAsFloat)), splat(kSumStartAsFloat));
    return sub(x, mul(rounded, splat(step)));
}

// The second term of a block: x and steps are those of the first, for each of `count` rows.
inline void refine_block(const bf16* x, int64_t count, int64_t width, const QuantizedRows& group, int64_t term,
                  const float* limits) {
    for (int64_t row = 0; row < count; ++row) {
        float step = group.steps[(term - 1) * count + row];
        bool is_refined = step > limits[row];
        Vec values[kVectors];
        for (int v = 0; v < kVectors; ++v)
            values[v] = is_refined ? remainder(load(x + row * width + v * kLanes), step) : splat(0);
        put_term(group, term, row, count, is_refined ? step / kRefinement : 0, values);
    }
}

// Turns `count` rows into terms.
inline void quantize_group(const bf16* x, int64_t count, int64_t width, const QuantizedRows& group) {
    float limits[kRows];
    for (int64_t row = 0; row < count; ++row) limits[row] = kRefineAbove * root_mean_square(x + row * width, width);
    int32_t term = 0;
    for (int64_t index = 0; index < width / kBlock; ++index) {
        const bf16* block = x + index * kBlock;
        bool is_refined = false;
        for (int64_t row = 0; row < count; ++row) {
            Vec values[kVectors], largest = splat(0);
            for (int v = 0; v < kVectors; ++v) {
                values[v] = load(block + row * width + v * kLanes);
                largest = max(largest, max(values[v], sub(splat(0), values[v])));
            }
            float step = max_lanes(largest) / 127.0f;
            if (step < kSmallestStep) step = 0;
            put_term(group, term, row, count, step, values);
            is_refined |= step > limits[row];
        }
        group.block[term++] = int32_t(index);
        if (!is_refined) continue;
        refine_block(block, count, width, group, term, limits);
        group.block[term++] = int32_t(index);
    }
    *group.num_terms = term;
    // Integers know no NaN and a maximum passes over it: it goes on to the products by way of the row's first step.
    for (int64_t row = 0; row < count; ++row)
        if (limits[row] != limits[row]) group.steps[row] = limits[row];
}

}  // namespace
