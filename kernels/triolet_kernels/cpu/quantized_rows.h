// Inputs of a linear layer rounded to int8 in blocks of 32, and where a weight's codes and scales lie.
//
// Only for AVX512-VNNI and above. Knows nothing of how the products are computed.
#pragma once

#include "simd.h"

namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kPanel = 2 * kLanes;  // outputs that are computed together
constexpr int kRows = 6;                // rows × 2 vectors, of int32 and of float32, fit in the registers
constexpr int64_t kScalesSize = kPanel * 2;

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
    float code_unit() const { return bits == 4 ? 16 : 1; }  // 4-bit codes are multiplied in the upper half of a byte
};

// Sums of products of codes start at this integer, whose bits are those of the float 1.5 × 2^23: read as a float, a
// sum of up to ±2^22 is that float plus the sum, exactly. That saves an instruction to convert each.
constexpr int32_t kSumStart = 0x4b400000;
constexpr float kSumStartAsFloat = 12582912.0f;

// Scales and minimums of 16 outputs.
struct WeightScales {
    Vec scale, minimum, start;  // of a unit of the products, of a unit of the inputs, what kSumStart amounts to

    TRIOLET_INLINE WeightScales(const uint8_t* block, const WeightFormat& format, int64_t half) {
        const uint8_t* source = block + format.codes_size() + 32 * half;
        Vec full = load_half(source);
        minimum = format.has_minimums ? load_half(source + kScalesSize) : mul(full, splat(-format.offset));
        scale = mul(full, splat(1 / format.code_unit()));
        start = mul(scale, splat(-kSumStartAsFloat));
    }

    static TRIOLET_INLINE Vec load_half(const uint8_t* source) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
    }

    // total + one term: its products of codes, from kSumStart on, put back in scale. kSumStart cancels out up to
    // some hundredths of a scale, times the step: far below what the rounding of inputs costs.
    TRIOLET_INLINE Vec add_to(Vec total, __m512i products, Vec step, Vec sum) const {
        Vec value = fma(_mm512_castsi512_ps(products), scale, fma(minimum, sum, start));
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

// Rounds a block to int8 and puts its codes down, a quad every `stride` bytes; returns their sum.
TRIOLET_INLINE int round_block(Vec low, Vec high, float inverse_step, int8_t* codes, int64_t stride) {
    __m512i first = _mm512_cvtps_epi32(mul(low, splat(inverse_step)));
    __m512i second = _mm512_cvtps_epi32(mul(high, splat(inverse_step)));
    __m128i bytes[2] = {_mm512_cvtsepi32_epi8(first), _mm512_cvtsepi32_epi8(second)};
    __m256i all = _mm256_set_m128i(bytes[1], bytes[0]);
    __m256i places = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(int(stride)));
    _mm256_i32scatter_epi32(codes, places, all, 1);
    return _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
}

template <class T>
float root_mean_square(const T* x, int64_t size) {
    Vec sum = splat(0);
    for (int64_t i = 0; i < size; i += kLanes) sum = fma(load(x + i), load(x + i), sum);
    return __builtin_sqrtf(sum_lanes(sum) / float(size));
}

// One row's part of a term.
TRIOLET_INLINE void put_term(const QuantizedRows& group, int64_t term, int64_t row, int64_t count, float step,
                             Vec low, Vec high) {
    int8_t* codes = group.codes + term * kBlock * count + row * 4;
    int sum = round_block(low, high, step > 0 ? 1 / step : 0, codes, count * 4);
    group.steps[term * count + row] = step;
    group.sums[term * count + row] = float(sum);
}

// What is left of x when it is rounded to a multiple of step.
TRIOLET_INLINE Vec remainder(Vec x, float step) {
    return sub(x, mul(_mm512_roundscale_ps(mul(x, splat(1 / step)), 0), splat(step)));
}

// The second term of a block: x and steps are those of the first, for each of `count` rows.
template <class T>
void refine_block(const T* x, int64_t count, int64_t width, const QuantizedRows& group, int64_t term,
                  const float* limits) {
    for (int64_t row = 0; row < count; ++row) {
        float step = group.steps[(term - 1) * count + row];
        Vec low = splat(0), high = splat(0);
        if (step > limits[row]) {
            low = remainder(load(x + row * width), step);
            high = remainder(load(x + row * width + kLanes), step);
        } else {
            step = 0;
        }
        put_term(group, term, row, count, step / kRefinement, low, high);
    }
}

// Turns `count` rows into terms.
template <class T>
void quantize_group(const T* x, int64_t count, int64_t width, const QuantizedRows& group) {
    float limits[kRows];
    for (int64_t row = 0; row < count; ++row) limits[row] = kRefineAbove * root_mean_square(x + row * width, width);
    int32_t term = 0;
    for (int64_t index = 0; index < width / kBlock; ++index) {
        const T* block = x + index * kBlock;
        bool is_refined = false;
        for (int64_t row = 0; row < count; ++row) {
            Vec low = load(block + row * width), high = load(block + row * width + kLanes);
            float step = max_lanes(max(_mm512_abs_ps(low), _mm512_abs_ps(high))) / 127.0f;
            if (step < kSmallestStep) step = 0;
            put_term(group, term, row, count, step, low, high);
            is_refined |= step > limits[row];
        }
        group.block[term++] = int32_t(index);
        if (!is_refined) continue;
        refine_block(block, count, width, group, term, limits);
        group.block[term++] = int32_t(index);
    }
    *group.num_terms = term;
}

}  // namespace
