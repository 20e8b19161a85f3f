// Copies of some rows of a matrix. Compiled for the oldest CPU: memory sets the pace.

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
