// RMS norm, alone and after adding to the residual. Knows nothing of heads or caches.

#include "norm.h"
#include "parallel.h"

namespace {

constexpr int64_t kMaxSize = 16384;

template <class T>
void read_row(float* target, const T* x, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(target + i, load(x + i));
    for (; i < size; ++i) target[i] = to_float(x[i]);
}

// residual += x, rounded to T; the rounded sum also goes to `sum`.
template <class T>
void add_row(float* sum, T* residual, const T* x, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(residual + i, add(load(residual + i), load(x + i)));
    for (; i < size; ++i) put(residual + i, to_float(residual[i]) + to_float(x[i]));
    read_row(sum, residual, size);
}

template <class T>
void rms_norm(const T* x, T* residual, const float* weight, T* output, int64_t num_rows, int64_t size, float eps,
              RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, size, [=](int64_t row) {
        float values[kMaxSize];
        if (residual)
            add_row(values, residual + row * size, x + row * size, size);
        else
            read_row(values, x + row * size, size);
        scale_row(output + row * size, values, inverse_rms(values, size, eps), weight, size);
    });
}

}  // namespace

// x, output (num_rows, size); weight (size,) float32; residual like x and changed in place, or null.
// size is at most 16384.
TRIOLET_EXPORT(rms_norm_float32)
(const float* x, float* residual, const float* weight, float* output, int64_t num_rows, int64_t size, float eps,
 RunTeam run_team, int64_t num_threads) {
    rms_norm(x, residual, weight, output, num_rows, size, eps, run_team, num_threads);
}

TRIOLET_EXPORT(rms_norm_bfloat16)
(const bf16* x, bf16* residual, const float* weight, bf16* output, int64_t num_rows, int64_t size, float eps,
 RunTeam run_team, int64_t num_threads) {
    rms_norm(x, residual, weight, output, num_rows, size, eps, run_team, num_threads);
}
