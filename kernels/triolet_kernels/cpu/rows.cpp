// Copies of some rows of a matrix, and in another number format. Compiled for the oldest CPU: memory sets the pace.

#include "parallel.h"
#include "simd.h"

// x (any number of rows, size), rows (num_rows,) → output (num_rows, size)
#define TRIOLET_TAKE_ROWS(name, T)                                                                                 \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* x, const int64_t* rows, T* output, int64_t num_rows, int64_t size, RunTeam run_team,                 \
     int64_t num_threads) {                                                                                        \
        for_each_row(run_team, num_threads, num_rows, size,                                                        \
                     [=](int64_t row) { memcpy(output + row * size, x + rows[row] * size, size * sizeof(T)); });   \
        return true;                                                                                               \
    }

TRIOLET_TAKE_ROWS(take_rows_float32, float)
TRIOLET_TAKE_ROWS(take_rows_bfloat16, bf16)

// x, output (num_rows, size)
TRIOLET_EXPORT(to_float32_bfloat16)
(const bf16* x, float* output, int64_t num_rows, int64_t size, RunTeam run_team, int64_t num_threads) {
    constexpr int64_t kUnit = 4096;
    const int64_t num_values = num_rows * size;
    for_each_unit(run_team, num_threads, (num_values + kUnit - 1) / kUnit, [=](int64_t unit) {
        const int64_t end = (unit + 1) * kUnit < num_values ? (unit + 1) * kUnit : num_values;
        for (int64_t i = unit * kUnit; i < end; ++i) output[i] = to_float(x[i]);
    });
    return true;
}
