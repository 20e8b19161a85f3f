// Linear layers with weights kept quantised: 4- or 8-bit codes, inputs rounded to int8, both in blocks of 32.
//
// A weight is code * scale + minimum with one scale and minimum to a block; an input is code * step. A block's
// product of codes is exact in int32; blocks are added in float32, in order, so that a row's result has the same
// bits whatever the rows beside it. One scale to a whole row of inputs would cost some 4 % of perplexity; one to a block
// costs less than 1 %. Only for CPUs with AVX512-VNNI or AVX2; those with matrix tiles have something better
// (tile_linear.cpp).

#include "simd.h"

#if defined(__AVX512VNNI__) || defined(__AVX2__)

#include "code_products.h"
#include "parallel.h"
#include "scratch.h"

namespace {

// results[row][kPanel] for ROWS rows and two vectors of a panel, the first of which is `vector`
template <int BITS, int ROWS>
TRIOLET_INLINE void multiply_vectors(const uint8_t* panel, const WeightFormat& format, const QuantizedRows& rows,
                                     int vector, float* results) {
    Vec total[ROWS][2];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row) total[row][0] = total[row][1] = splat(0);
    for (int64_t term = 0; term < *rows.num_terms; ++term) {
        const uint8_t* weights = panel + rows.block[term] * format.block_size();
        Codes sum[ROWS][2];
        multiply_block<BITS, ROWS>(sum, weights + vector * kLanes * 4, rows.codes + term * kBlock * ROWS);
        const WeightScales scales[2] = {{weights, format, vector}, {weights, format, vector + 1}};
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            Vec step = splat(rows.steps[term * ROWS + row]), input_sum = splat(rows.sums[term * ROWS + row]);
#pragma GCC unroll 2
            for (int v = 0; v < 2; ++v)
                total[row][v] = scales[v].add_to(total[row][v], as_floats(sum[row][v]), step, input_sum);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < 2; ++v) store(results + row * kPanel + (vector + v) * kLanes, total[row][v]);
}

// results[row][kPanel] for ROWS rows and one panel
template <int BITS, int ROWS>
void multiply_panel(const uint8_t* panel, const WeightFormat& format, const QuantizedRows& rows, float* results) {
    for (int vector = 0; vector < kVectors; vector += 2)
        multiply_vectors<BITS, ROWS>(panel, format, rows, vector, results);
}

using MultiplyPanel = void (*)(const uint8_t*, const WeightFormat&, const QuantizedRows&, float*);

template <int BITS>
MultiplyPanel multiply_panel_for(int64_t num_rows) {
    switch (num_rows) {
        case 1: return multiply_panel<BITS, 1>;
        case 2: return multiply_panel<BITS, 2>;
        case 3: return multiply_panel<BITS, 3>;
        case 4: return multiply_panel<BITS, 4>;
        case 5: return multiply_panel<BITS, kRows < 5 ? kRows : 5>;
        default: return multiply_panel<BITS, kRows>;
    }
}

struct Linear {
    const bf16* x;
    const uint8_t* weights;
    const float* bias;
    bf16* output;
    int64_t num_rows, width, num_outputs;
    WeightFormat format;

    int64_t num_groups() const { return (num_rows + kRows - 1) / kRows; }
    int64_t group_size(int64_t group) const {
        return num_rows - group * kRows < kRows ? num_rows - group * kRows : kRows;
    }

    void run_panel(int64_t panel, const QuantizedRows& rows) const {
        int64_t first_output = panel * kPanel;
        int64_t count = num_outputs - first_output < kPanel ? num_outputs - first_output : kPanel;
        const uint8_t* panel_weights = weights + panel * (width / kBlock) * format.block_size();
        alignas(64) float results[kRows * kPanel];
        for (int64_t group = 0; group < num_groups(); ++group) {
            auto multiply = (format.bits == 4 ? multiply_panel_for<4> : multiply_panel_for<8>)(group_size(group));
            multiply(panel_weights, format, rows.group(group, width), results);
            for (int64_t row = 0; row < group_size(group); ++row)
                write(output + (group * kRows + row) * num_outputs + first_output, results + row * kPanel, first_output,
                      count);
        }
    }

    void write(bf16* target, float* results, int64_t first_output, int64_t count) const {
        if (bias)
            for (int64_t i = 0; i < count; ++i) results[i] += bias[first_output + i];
        if (count == kPanel) {
            for (int64_t i = 0; i < kPanel; i += kLanes) store(target + i, load(results + i));
        } else {
            for (int64_t i = 0; i < count; ++i) put(target + i, results[i]);
        }
    }

    // False if there is no memory for the rounded inputs.
    bool run(RunTeam run_team, int64_t num_threads) const {
        constexpr int64_t kUnitsPerThread = 8;
        int64_t num_blocks = width / kBlock, num_panels = (num_outputs + kPanel - 1) / kPanel;
        int64_t num_scales = 2 * num_rows * num_blocks, num_indices = num_groups() * (2 * num_blocks + 1);
        int64_t size = 2 * num_rows * width + 2 * num_scales * int64_t(sizeof(float)) + num_indices * 4;
        Scratch<int8_t> memory(size);
        if (!memory) return false;
        int8_t* codes = memory.values;
        auto* steps = reinterpret_cast<float*>(codes + 2 * num_rows * width);
        auto* block = reinterpret_cast<int32_t*>(steps + 2 * num_scales);
        QuantizedRows rows = {codes, steps, steps + num_scales, block, block + 2 * num_groups() * num_blocks};
        for_each_row(run_team, num_threads, num_groups(), kRows * width, [&](int64_t group) {
            quantize_group(x + group * kRows * width, group_size(group), width, rows.group(group, width));
        });
        int64_t num_units = num_panels < kUnitsPerThread * num_threads ? num_panels : kUnitsPerThread * num_threads;
        for_each_unit(run_team, num_threads, num_units, [&](int64_t unit) {
            int64_t end = (unit + 1) * num_panels / num_units;
            for (int64_t panel = unit * num_panels / num_units; panel < end; ++panel) run_panel(panel, rows);
        });
        return true;
    }
};

}  // namespace

// x (num_rows, width) times the packed weight (num_outputs, width), plus bias (num_outputs,) float32 or null →
// output (num_rows, num_outputs). bits is 4 or 8; offset 0 says that minimums are kept.
TRIOLET_EXPORT(linear_bfloat16)
(const bf16* x, const uint8_t* weights, const float* bias, bf16* output, int64_t num_rows, int64_t width,
 int64_t num_outputs, int64_t bits, int64_t offset, RunTeam run_team, int64_t num_threads) {
    WeightFormat format = {bits, float(offset), offset == 0};
    return Linear{x, weights, bias, output, num_rows, width, num_outputs, format}.run(run_team, num_threads);
}

#endif
