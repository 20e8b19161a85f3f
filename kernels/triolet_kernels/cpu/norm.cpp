// RMS norm, alone and after adding to the residual. Knows nothing of heads or caches.

#include "norm.h"
#include "parallel.h"

namespace {

constexpr int64_t kMaxSize = 16384;

// residual += x; the sum also goes to `sum`.
template <class T>
void add_row(float* sum, float* residual, const T* x, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(residual + i, add(load(residual + i), load(x + i)));
    for (; i < size; ++i) residual[i] += to_float(x[i]);
    read_row(sum, residual, size);
}

template <class X, class T>
void rms_norm(const X* x, const float* weight, T* output, int64_t num_rows, int64_t size, float eps, RunTeam run_team,
              int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t row) {
        float values[kMaxSize];
        read_row(values, x + row * size, size);
        scale_row(output + row * size, values, inverse_rms(values, size, eps), weight, size);
    });
}

// Of the columns from `first` on, in place; rows are `stride` values apart.
template <class T>
void norm_columns(T* x, const float* weight, int64_t num_rows, int64_t stride, int64_t first, int64_t size, float eps,
                  RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t row) {
        float values[kMaxSize];
        T* target = x + row * stride + first;
        read_row(values, target, size);
        scale_row(target, values, inverse_rms(values, size, eps), weight, size);
    });
}

template <class T>
void add_rms_norm(const T* x, float* residual, const float* weight, T* output, int64_t num_rows, int64_t size,
                  float eps, RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t row) {
        float values[kMaxSize];
        add_row(values, residual + row * size, x + row * size, size);
        scale_row(output + row * size, values, inverse_rms(values, size, eps), weight, size);
    });
}

}  // namespace

// x, output (num_rows, size); weight (size,) float32; size is at most 16384.
#define TRIOLET_RMS_NORM(name, X, T)                                                                     \
    TRIOLET_EXPORT(name)                                                                                 \
    (const X* x, const float* weight, T* output, int64_t num_rows, int64_t size, float eps,              \
     RunTeam run_team, int64_t num_threads) {                                                            \
        rms_norm(x, weight, output, num_rows, size, eps, run_team, num_threads);                         \
        return true;                                                                                     \
    }

TRIOLET_RMS_NORM(rms_norm_float32, float, float)
TRIOLET_RMS_NORM(rms_norm_bfloat16, bf16, bf16)
TRIOLET_RMS_NORM(rms_norm_of_float32_float32, float, float)
TRIOLET_RMS_NORM(rms_norm_of_float32_bfloat16, float, bf16)

// The same of residual + x; residual (num_rows, size) float32 is changed in place.
#define TRIOLET_ADD_RMS_NORM(name, T)                                                                    \
    TRIOLET_EXPORT(name)                                                                                 \
    (const T* x, float* residual, const float* weight, T* output, int64_t num_rows, int64_t size,        \
     float eps, RunTeam run_team, int64_t num_threads) {                                                 \
        add_rms_norm(x, residual, weight, output, num_rows, size, eps, run_team, num_threads);           \
        return true;                                                                                     \
    }

TRIOLET_ADD_RMS_NORM(add_rms_norm_float32, float)
TRIOLET_ADD_RMS_NORM(add_rms_norm_bfloat16, bf16)

// x (num_rows, stride), of which the columns from `first` on are changed in place; weight (size,) float32.
#define TRIOLET_NORM_COLUMNS(name, T)                                                                    \
    TRIOLET_EXPORT(name)                                                                                 \
    (T* x, const float* weight, int64_t num_rows, int64_t stride, int64_t first, int64_t size,           \
     float eps, RunTeam run_team, int64_t num_threads) {                                                 \
        norm_columns(x, weight, num_rows, stride, first, size, eps, run_team, num_threads);              \
        return true;                                                                                     \
    }

TRIOLET_NORM_COLUMNS(norm_columns_float32, float)
TRIOLET_NORM_COLUMNS(norm_columns_bfloat16, bf16)
