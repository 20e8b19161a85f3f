// Rows of inputs against one panel of a dense weight, in vectors of any instruction set.
//
// Every sum of products begins at zero and takes the inputs in order, in one accumulator: its bits depend on its row and
// the weights alone, not on the rows beside it. Knows nothing of threads.
#pragma once

#include "simd.h"

namespace {

constexpr int64_t kHalf = 16;          // outputs whose weights lie side by side
constexpr int64_t kPanel = 2 * kHalf;  // outputs that are computed together

constexpr int64_t kDepth = 32;         // inputs to a matrix tile

// The width with zeros up to whole matrix tiles, where the number format has such.
template <class T>
int64_t padded_width(int64_t width) {
    return PairSize<T>::value == 1 ? width : (width + kDepth - 1) / kDepth * kDepth;
}

// A panel is [2 halves][padded width / P][16 outputs][P].
template <class T>
struct VectorRows {
    static constexpr int64_t P = PairSize<T>::value;
#if defined(__AVX512BF16__)
    static constexpr int kRows = 12;  // × 2 vectors of accumulators, of 32 registers
#else
    static constexpr int kRows = P == 1 ? 6 : 4;  // of 16
#endif

    static constexpr int kRowMultiple = 1;

    struct Session {};

    // results [count][kPanel] = or += rows of x times a panel, over inputs first:end, which are whole matrix tiles. Rows
    // of x are `stride` values apart.
    static void multiply(const T* panel, const T* x, int64_t stride, int64_t first, int64_t end, int count,
                         float* results) {
        const Kernel kernel = kernel_for(count);
        for (int64_t output = 0; output < kPanel; output += 2 * kLanes) {
            const T* weights = panel + output / kHalf * stride * kHalf + output % kHalf * P;
            kernel(weights, kLanes == kHalf ? stride * kHalf : kLanes * P, x, stride, first, end, results + output);
        }
    }

private:
    using Kernel = void (*)(const T*, int64_t, const T*, int64_t, int64_t, int64_t, float*);

    // Two vectors of outputs; the second one's weights are `apart` values after the first one's.
    template <int ROWS>
    static void multiply_rows(const T* weights, int64_t apart, const T* x, int64_t stride, int64_t begin, int64_t end,
                              float* results) {
        Vec sum[ROWS][2];
        const T* three[(ROWS + 2) / 3];  // rows by threes, as far apart as an address can name
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            three[row / 3] = x + row / 3 * 3 * stride;
            sum[row][0] = begin ? load(results + row * kPanel) : splat(0);
            sum[row][1] = begin ? load(results + row * kPanel + kLanes) : splat(0);
        }
        for (int64_t i = begin; i < end; i += P) {
            auto first = load_pairs(weights + i * kHalf);
            auto second = load_pairs(weights + i * kHalf + apart);
#pragma GCC unroll 12
            for (int row = 0; row < ROWS; ++row) {
                auto input = splat_pair(three[row / 3] + row % 3 * stride + i);
                sum[row][0] = dot(sum[row][0], first, input);
                sum[row][1] = dot(sum[row][1], second, input);
            }
        }
#pragma GCC unroll 12
        for (int row = 0; row < ROWS; ++row) {
            store(results + row * kPanel, sum[row][0]);
            store(results + row * kPanel + kLanes, sum[row][1]);
        }
    }

    static Kernel kernel_for(int count) {
        switch (count) {
            case 1: return multiply_rows<1>;
            case 2: return multiply_rows<2>;
            case 3: return multiply_rows<3>;
#if defined(__AVX512BF16__)
            case 4: return multiply_rows<4>;
            case 5: return multiply_rows<5>;
            case 6: return multiply_rows<6>;
            case 7: return multiply_rows<7>;
            case 8: return multiply_rows<8>;
            case 9: return multiply_rows<9>;
            case 10: return multiply_rows<10>;
            case 11: return multiply_rows<11>;
#else
            case 4: return multiply_rows<4>;
            case 5: return multiply_rows<kRows < 5 ? kRows : 5>;
#endif
            default: return multiply_rows<kRows>;
        }
    }
};

// How rows of a number format go through the weights.
template <class T>
struct DenseRowsOf {
    using type = VectorRows<T>;
};

}  // namespace
