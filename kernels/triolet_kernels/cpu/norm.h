// Root-mean-square normalisation of one row, shared by the norm and the rotary kernels.
#pragma once

#include "simd.h"

namespace {

// A row as float32.
template <class T>
TRIOLET_INLINE void read_row(float* target, const T* x, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) store(target + i, load(x + i));
    for (; i < size; ++i) target[i] = to_float(x[i]);
}

// The sum of squares, in an order that depends on `size` alone.
TRIOLET_INLINE float sum_squares(const float* x, int64_t size) {
    Vec sum = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        Vec value = load(x + i);
        sum = fma(value, value, sum);
    }
    float total = sum_lanes(sum);
    for (; i < size; ++i) total += x[i] * x[i];
    return total;
}

// 1 / sqrt(mean of squares + eps)
TRIOLET_INLINE float inverse_rms(const float* x, int64_t size, float eps) {
    return 1.0f / __builtin_sqrtf(sum_squares(x, size) / float(size) + eps);
}

// target = x * factor * weight
template <class T>
TRIOLET_INLINE void scale_row(T* target, const float* x, float factor, const float* weight, int64_t size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes)
        store(target + i, mul(mul(load(x + i), splat(factor)), load(weight + i)));
    for (; i < size; ++i) put(target + i, x[i] * factor * weight[i]);
}

}  // namespace
