// Linear layers with weights kept quantised: 4- or 8-bit codes, inputs rounded to int8, both in blocks of 32.
//
// A weight is code * scale + minimum with one scale and minimum to a block; an input is code * step. A block's
// product of codes is exact in int32; blocks are added in float32, in order, so that a row's result does not
// depend on the rows beside it. One scale to a whole row of inputs would cost some 4 % of perplexity; one to a
// block costs less than 1 %. Only for CPUs with AVX512-VNNI.

#include "simd.h"

#if defined(__AVX512VNNI__)

#include <stdlib.h>

#include "parallel.h"

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

// Inputs as int8, rows in groups of at most kRows. A group is a list of terms: each block of its inputs in order,
// some of them twice. Rows that need no second term have zeros in it, which add exactly nothing.
struct QuantizedRows {
    int8_t* codes;   // [term][8 quads][rows][4]
    float* steps;    // [term][rows]
    float* sums;     // [term][rows]: of the inputs after rounding
    int32_t* block;  // [term]: which block of the weights it goes with
    int32_t* num_terms;

    QuantizedRows group(int64_t first, int64_t width) const {
        int64_t max_terms = 2 * width / kBlock, index = first / kRows;
        return {codes + 2 * first * width, steps + first * max_terms, sums + first * max_terms,
                block + index * max_terms, num_terms + index};
    }
};

// A panel's block in memory: codes [quads of inputs][2][16 outputs][4], then float16 scales [2][16], then minimums
// likewise if there are any. A byte of 4-bit codes holds inputs i and i + 16 of the block.
struct WeightFormat {
    int64_t bits;
    float offset;  // minimum = -offset * scale where minimums are not kept
    bool has_minimums;

    int64_t codes_size() const { return kPanel * kBlock * bits / 8; }
    int64_t block_size() const { return codes_size() + kScalesSize * (has_minimums ? 2 : 1); }
};

TRIOLET_INLINE Vec load_half(const uint8_t* source) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
}

TRIOLET_INLINE __m512i splat_quad(const int8_t* source) {
    int32_t quad;
    memcpy(&quad, source, 4);
    return _mm512_set1_epi32(quad);
}

// Rounds a block to int8 and puts its codes down by quads; returns their sum.
TRIOLET_INLINE int round_block(Vec low, Vec high, float inverse_step, int8_t* codes, int64_t stride) {
    __m512i first = _mm512_cvtps_epi32(mul(low, splat(inverse_step)));
    __m512i second = _mm512_cvtps_epi32(mul(high, splat(inverse_step)));
    int8_t bytes[kBlock];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtsepi32_epi8(first));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + kLanes), _mm512_cvtsepi32_epi8(second));
    for (int64_t quad = 0; quad < kBlock / 4; ++quad) memcpy(codes + quad * stride, bytes + 4 * quad, 4);
    return _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
}

template <class T>
float root_mean_square(const T* x, int64_t size) {
    Vec sum = splat(0);
    for (int64_t i = 0; i < size; i += kLanes) sum = fma(load(x + i), load(x + i), sum);
    return __builtin_sqrtf(sum_lanes(sum) / float(size));
}

// One row's part of a term; leaves in the block what was rounded away.
TRIOLET_INLINE void put_term(const QuantizedRows& group, int64_t term, int64_t row, int64_t count, float step,
                             Vec (&block)[2]) {
    float inverse = step > 0 ? 1 / step : 0;
    int8_t* codes = group.codes + term * kBlock * count + row * 4;
    group.steps[term * count + row] = step;
    group.sums[term * count + row] = step * float(round_block(block[0], block[1], inverse, codes, count * 4));
    for (Vec& half : block) half = sub(half, mul(_mm512_roundscale_ps(mul(half, splat(inverse)), 0), splat(step)));
}

// Turns `count` rows into terms.
template <class T>
void quantize_group(const T* x, int64_t count, int64_t width, const QuantizedRows& group) {
    float limits[kRows];
    for (int64_t row = 0; row < count; ++row) limits[row] = kRefineAbove * root_mean_square(x + row * width, width);
    int32_t term = 0;
    for (int64_t index = 0; index < width / kBlock; ++index) {
        Vec rest[kRows][2];
        float fine_steps[kRows];
        bool is_refined = false;
        for (int64_t row = 0; row < count; ++row) {
            const T* source = x + row * width + index * kBlock;
            rest[row][0] = load(source), rest[row][1] = load(source + kLanes);
            float step = max_lanes(max(_mm512_abs_ps(rest[row][0]), _mm512_abs_ps(rest[row][1]))) / 127.0f;
            put_term(group, term, row, count, step, rest[row]);
            fine_steps[row] = step > limits[row] ? step / kRefinement : 0;
            is_refined |= step > limits[row];
        }
        group.block[term++] = int32_t(index);
        if (!is_refined) continue;
        for (int64_t row = 0; row < count; ++row) put_term(group, term, row, count, fine_steps[row], rest[row]);
        group.block[term++] = int32_t(index);
    }
    *group.num_terms = term;
}

template <int ROWS>
TRIOLET_INLINE void add_quads(__m512i (&sum)[ROWS][2], __m512i left, __m512i right, const int8_t* codes) {
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) {
        __m512i quad = splat_quad(codes + row * 4);
        sum[row][0] = _mm512_dpbusd_epi32(sum[row][0], left, quad);
        sum[row][1] = _mm512_dpbusd_epi32(sum[row][1], right, quad);
    }
}

// sum[row][half] = codes of the weights · codes of the inputs, over one block
template <int BITS, int ROWS>
TRIOLET_INLINE void multiply_block(__m512i (&sum)[ROWS][2], const uint8_t* weights, const int8_t* codes) {
    constexpr int kQuad = 4 * ROWS;
    const __m512i nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int quad = 0; quad < BITS; ++quad) {
        __m512i left = _mm512_loadu_si512(weights + quad * 128);
        __m512i right = _mm512_loadu_si512(weights + quad * 128 + 64);
        if constexpr (BITS == 8) {
            add_quads<ROWS>(sum, left, right, codes + quad * kQuad);
        } else {
            add_quads<ROWS>(sum, _mm512_and_si512(left, nibble), _mm512_and_si512(right, nibble),
                            codes + quad * kQuad);
            add_quads<ROWS>(sum, _mm512_and_si512(_mm512_srli_epi16(left, 4), nibble),
                            _mm512_and_si512(_mm512_srli_epi16(right, 4), nibble), codes + (quad + 4) * kQuad);
        }
    }
}

// results[row][kPanel] for ROWS rows and one panel
template <int BITS, int ROWS>
void multiply_panel(const uint8_t* panel, const WeightFormat& format, const QuantizedRows& rows, float* results) {
    Vec total[ROWS][2];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) total[row][0] = total[row][1] = splat(0);
    for (int64_t term = 0; term < *rows.num_terms; ++term) {
        const uint8_t* weights = panel + rows.block[term] * format.block_size();
        const uint8_t* scales = weights + format.codes_size();
        __m512i sum[ROWS][2];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) sum[row][0] = sum[row][1] = _mm512_setzero_si512();
        multiply_block<BITS, ROWS>(sum, weights, rows.codes + term * kBlock * ROWS);
        Vec scale[2] = {load_half(scales), load_half(scales + 32)};
        Vec minimum[2];
        for (int half = 0; half < 2; ++half)
            minimum[half] = format.has_minimums ? load_half(scales + kScalesSize + 32 * half)
                                                : mul(scale[half], splat(-format.offset));
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            Vec step = splat(rows.steps[term * ROWS + row]), input_sum = splat(rows.sums[term * ROWS + row]);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                Vec product = _mm512_cvtepi32_ps(sum[row][half]);
                total[row][half] = fma(product, mul(scale[half], step), total[row][half]);
                total[row][half] = fma(minimum[half], input_sum, total[row][half]);
            }
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int half = 0; half < 2; ++half) store(results + row * kPanel + half * kLanes, total[row][half]);
}

using MultiplyPanel = void (*)(const uint8_t*, const WeightFormat&, const QuantizedRows&, float*);

template <int BITS>
MultiplyPanel multiply_panel_for(int64_t num_rows) {
    switch (num_rows) {
        case 1: return multiply_panel<BITS, 1>;
        case 2: return multiply_panel<BITS, 2>;
        case 3: return multiply_panel<BITS, 3>;
        case 4: return multiply_panel<BITS, 4>;
        case 5: return multiply_panel<BITS, 5>;
        default: return multiply_panel<BITS, kRows>;
    }
}

template <class T>
struct Linear {
    const T* x;
    const uint8_t* weights;
    const float* bias;
    T* output;
    int64_t num_rows, width, num_outputs;
    WeightFormat format;

    int64_t group_size(int64_t first) const { return num_rows - first < kRows ? num_rows - first : kRows; }

    void run_panel(int64_t panel, const QuantizedRows& rows) const {
        int64_t num_blocks = width / kBlock, first_output = panel * kPanel;
        int64_t count = num_outputs - first_output < kPanel ? num_outputs - first_output : kPanel;
        alignas(64) float results[kRows * kPanel];
        for (int64_t first = 0; first < num_rows; first += kRows) {
            int64_t group = group_size(first);
            auto multiply = format.bits == 4 ? multiply_panel_for<4>(group) : multiply_panel_for<8>(group);
            multiply(weights + panel * num_blocks * format.block_size(), format, rows.group(first, width),
                     results);
            for (int64_t row = 0; row < group; ++row)
                write(output + (first + row) * num_outputs + first_output, results + row * kPanel, first_output, count);
        }
    }

    void write(T* target, float* results, int64_t first_output, int64_t count) const {
        if (bias)
            for (int64_t i = 0; i < count; ++i) results[i] += bias[first_output + i];
        if (count == kPanel) {
            store(target, load(results));
            store(target + kLanes, load(results + kLanes));
        } else {
            for (int64_t i = 0; i < count; ++i) put(target + i, results[i]);
        }
    }

    void run(RunTeam run_team, int64_t num_threads) const {
        constexpr int64_t kUnitsPerThread = 8;
        int64_t num_blocks = width / kBlock, num_panels = (num_outputs + kPanel - 1) / kPanel;
        int64_t num_groups = (num_rows + kRows - 1) / kRows, num_scales = 2 * num_rows * num_blocks;
        int64_t num_indices = num_groups * (2 * num_blocks + 1);
        auto* steps = static_cast<float*>(
            malloc(2 * num_scales * sizeof(float) + num_indices * sizeof(int32_t) + 2 * num_rows * width));
        auto* block = reinterpret_cast<int32_t*>(steps + 2 * num_scales);
        auto* codes = reinterpret_cast<int8_t*>(block + num_indices);
        QuantizedRows rows = {codes, steps, steps + num_scales, block, block + 2 * num_groups * num_blocks};
        for_each_row(run_team, num_threads, num_groups, kRows * width, [&](int64_t index) {
            int64_t first = index * kRows;
            quantize_group(x + first * width, group_size(first), width, rows.group(first, width));
        });
        int64_t num_units = num_panels < kUnitsPerThread * num_threads ? num_panels : kUnitsPerThread * num_threads;
        for_each_unit(run_team, num_threads, num_units, [&](int64_t unit) {
            int64_t end = (unit + 1) * num_panels / num_units;
            for (int64_t panel = unit * num_panels / num_units; panel < end; ++panel) run_panel(panel, rows);
        });
        free(steps);
    }
};

}  // namespace

// x (num_rows, width) times the packed weight (num_outputs, width), plus bias (num_outputs,) float32 or null →
// output (num_rows, num_outputs). bits is 4 or 8; offset 0 says that minimums are kept.
#define TRIOLET_LINEAR(name, T)                                                                                    \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* x, const uint8_t* weights, const float* bias, T* output, int64_t num_rows, int64_t width,            \
     int64_t num_outputs, int64_t bits, int64_t offset, RunTeam run_team, int64_t num_threads) {                   \
        WeightFormat format = {bits, float(offset), offset == 0};                                                  \
        Linear<T> linear = {x, weights, bias, output, num_rows, width, num_outputs, format};                       \
        linear.run(run_team, num_threads);                                                                         \
    }

TRIOLET_LINEAR(linear_float32, float)
TRIOLET_LINEAR(linear_bfloat16, bf16)

#endif
