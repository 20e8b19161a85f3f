// Where values lie inside the cache of one block and head: B tokens × D dimensions.
//
// Keys are kept [D / P][B][P] and values [B / P][D][P], P values to a 32-bit lane (2 of bf16, 1 of float32): with
// a query or a probability broadcast, both products of attention then run over whole vectors without a sum across
// lanes. The layout is the same for all instruction sets.
#pragma once

#include "simd.h"

namespace {

template <class T>
TRIOLET_INLINE int64_t key_index(int64_t token, int64_t dimension, int64_t block_size) {
    constexpr int64_t P = PairSize<T>::value;
    return (dimension / P * block_size + token) * P + dimension % P;
}

template <class T>
TRIOLET_INLINE int64_t value_index(int64_t token, int64_t dimension, int64_t head_dim) {
    constexpr int64_t P = PairSize<T>::value;
    return (token / P * head_dim + dimension) * P + token % P;
}

}  // namespace
