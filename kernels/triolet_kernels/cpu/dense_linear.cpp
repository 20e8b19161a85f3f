// Linear layers with weights of the number format of their inputs, summed in float32.
//
// Which bits come out for a row depends on that row and the weights alone: not on the number of rows, on threads, or on
// where in a panel or a group something lies. Weights are in panels of 32 outputs, packed by dense_linear.py.

#include "dense_rows.h"
#include "dense_tiles.h"
#include "parallel.h"
#include "scratch.h"

namespace {

constexpr int64_t kUnitsPerThread = 8;
constexpr int64_t kMostPanels = 16;             // that a group of rows goes through in one unit of work
constexpr int64_t kLeastPanels = 2;             // likewise, where work suffices for all threads
constexpr int64_t kCachedWeights = 1024 * 1024; // bytes that stay in a second-level cache while all groups go by
constexpr int64_t kCachedInputs = 512;          // inputs of a group that stay in the first-level cache

TRIOLET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TRIOLET_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
TRIOLET_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
struct DenseLinear {
    using Rows = typename DenseRowsOf<T>::type;

    const T* x;
    const T* weights;
    const float* bias;
    T* output;
    int64_t num_rows, width, num_outputs;

    int64_t num_groups() const { return divide_up(num_rows, Rows::kRows); }
    int64_t num_panels() const { return divide_up(num_outputs, kPanel); }
    int64_t group_rows(int64_t group) const { return smaller(Rows::kRows, num_rows - group * Rows::kRows); }

    // The first group that cannot be read where it is: all of them where the width is to be padded, else the last
    // one where it is not of whole tiles.
    int64_t first_copied() const {
        if (width != padded_width<T>(width)) return 0;
        return num_rows % Rows::kRowMultiple ? num_groups() - 1 : num_groups();
    }

    int64_t num_copied() const { return larger(num_groups() - first_copied(), 0) * Rows::kRows; }

    // Copies the groups from first_copied() on, with zeros where there are no inputs or rows.
    void copy_rows(T* copies) const {
        int64_t first = first_copied() * Rows::kRows, padded = padded_width<T>(width);
        if (num_copied()) memset(copies, 0, num_copied() * padded * sizeof(T));
        for (int64_t row = first; row < num_rows; ++row)
            memcpy(copies + (row - first) * padded, x + row * width, width * sizeof(T));
    }

    const T* rows_of(int64_t group, const T* copies) const {
        int64_t size = Rows::kRows * padded_width<T>(width), first = first_copied();
        return group < first ? x + group * size : copies + (group - first) * size;
    }

    // A group of rows through some panels. Inputs are taken a block at a time and sums put aside in between, which
    // changes no bit.
    void run_group(int64_t group, int64_t first_panel, int64_t end_panel, const T* copies) const {
        alignas(64) float results[kMostPanels][Rows::kRows * kPanel];
        const T* rows = rows_of(group, copies);
        int64_t padded = padded_width<T>(width), count = group_rows(group);
        int64_t num_blocks = num_groups() > 1 ? divide_up(padded, kCachedInputs) : 1;
        int64_t block = divide_up(divide_up(padded, num_blocks), kDepth) * kDepth;
        for (int64_t first = 0; first < padded; first += block) {
            for (int64_t panel = first_panel; panel < end_panel; ++panel) {
                float* sums = results[panel - first_panel];
                Rows::multiply(weights + panel * kPanel * padded, rows, padded, first, smaller(first + block, padded),
                               int(count), sums);
                if (first + block >= padded) write(group * Rows::kRows, count, panel * kPanel, sums);
            }
        }
    }

    // Adds the bias to sums [count][kPanel] and puts them out, rounded.
    void write(int64_t first_row, int64_t count, int64_t first_output, const float* sums) const {
        T* target = output + first_row * num_outputs + first_output;
        int64_t num_columns = smaller(kPanel, num_outputs - first_output);
        alignas(64) float start[kPanel] = {};
        if (bias) memcpy(start, bias + first_output, num_columns * sizeof(float));
        for (int64_t row = 0; row < count; ++row, target += num_outputs, sums += kPanel) {
            if (num_columns == kPanel) {
                for (int64_t i = 0; i < kPanel; i += kLanes) store(target + i, add(load(sums + i), load(start + i)));
            } else {
                for (int64_t i = 0; i < num_columns; ++i) put(target + i, sums[i] + start[i]);
            }
        }
    }

    // Work is cut into columns of panels; into bands of groups of rows as well where that makes too few parts, since
    // every band reads the column's weights again. False if there is no memory for the copied rows.
    bool run(RunTeam run_team, int64_t num_threads) const {
        int64_t panel_size = kPanel * padded_width<T>(width) * int64_t(sizeof(T));
        int64_t most_panels = smaller(larger(kCachedWeights / panel_size, kLeastPanels), kMostPanels);
        int64_t least_units = num_threads > 1 ? kUnitsPerThread * num_threads : 1;
        int64_t least_panels = num_groups() > kUnitsPerThread ? kLeastPanels : 1;
        int64_t columns = larger(divide_up(num_panels(), most_panels),
                                 smaller(divide_up(num_panels(), least_panels), least_units));
        int64_t bands = smaller(num_groups(), divide_up(least_units, columns));
        Scratch<T> copies(num_copied() * padded_width<T>(width));
        if (!copies) return false;
        copy_rows(copies.values);
        for_each_unit(run_team, num_threads, columns * bands, [&](int64_t unit) {
            int64_t column = unit / bands, band = unit % bands;
            int64_t first = column * num_panels() / columns, end = (column + 1) * num_panels() / columns;
            typename Rows::Session session;
            for (int64_t group = band * num_groups() / bands; group < (band + 1) * num_groups() / bands; ++group)
                run_group(group, first, end, copies.values);
        });
        return true;
    }
};

}  // namespace

// x (num_rows, width) times weights (num_outputs, width), in panels, plus bias (num_outputs,) float32 or null →
// output (num_rows, num_outputs). Panels are [panels][2][width / P][16 outputs][P], with P values to 32 bits; for
// bf16 the width is padded with zeros to a multiple of 32, as matrix tiles take it.
#define TRIOLET_DENSE_LINEAR(name, T)                                                                              \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* x, const T* weights, const float* bias, T* output, int64_t num_rows, int64_t width,                  \
     int64_t num_outputs, RunTeam run_team, int64_t num_threads) {                                                 \
        DenseLinear<T> linear = {x, weights, bias, output, num_rows, width, num_outputs};                          \
        return linear.run(run_team, num_threads);                                                                  \
    }

TRIOLET_DENSE_LINEAR(dense_linear_float32, float)
TRIOLET_DENSE_LINEAR(dense_linear_bfloat16, bf16)
