// Keys and values of 8 bits each: the codes of a row are multiples of one power of two, which is kept beside them.
//
// Of one block and head come first the codes of all tokens, each where cache_layout.h has a value of T, then their
// scales: a bfloat16 to a token, since a power of two is all exponent. A code times its scale is exact in every number
// format, so that no order of work can show. A row that is not finite comes back as NaN.
#pragma once

#include "cache_layout.h"

namespace {

struct Code {
    int8_t value;
};

constexpr int64_t kScaleSize = sizeof(bf16);
constexpr bf16 kNotFinite = {249 << 7};  // in the place of a scale
constexpr int kLargestCode = 127;

// Elements of a cache that one block and head take.
template <class E>
TRIOLET_INLINE int64_t page_size(int64_t block_size, int64_t head_dim) {
    return block_size * head_dim;
}
template <>
TRIOLET_INLINE int64_t page_size<Code>(int64_t block_size, int64_t head_dim) {
    return block_size * (head_dim + kScaleSize);
}

TRIOLET_INLINE bf16* scales_of(Code* page, int64_t block_size, int64_t head_dim) {
    return reinterpret_cast<bf16*>(page + block_size * head_dim);
}
TRIOLET_INLINE const bf16* scales_of(const Code* page, int64_t block_size, int64_t head_dim) {
    return reinterpret_cast<const bf16*>(page + block_size * head_dim);
}

// The least power of two that no code exceeds 127 with, down to 2^-112; kNotFinite if there is none.
template <class T>
TRIOLET_INLINE bf16 scale_for(const T* row, int64_t size) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < size; ++i) {
        float value = to_float(row[i]);
        uint32_t bits;
        memcpy(&bits, &value, 4);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    uint32_t exponent = (largest + 0x10000) >> 23;  // one more for 127.5 / 64, which would be rounded to 128 / 64
    exponent = exponent < 21 ? 21 : exponent > 255 ? 255 : exponent;
    return {uint16_t((exponent - 6) << 7)};
}

// codes[i] = row[i] / scale, to the nearest, ties to even.
template <class T>
TRIOLET_INLINE void encode(const T* row, int64_t size, bf16 scale, Code* codes) {
    if (scale.bits == kNotFinite.bits) {
        memset(codes, kLargestCode, size);
        return;
    }
    const float factor = 1 / to_float(scale);
    for (int64_t i = 0; i < size; ++i) {
        float shifted = to_float(row[i]) * factor + 12582912.0f;  // 1.5 × 2^23: the nearest integer moves to the low bits
        int32_t bits;
        memcpy(&bits, &shifted, 4);
        codes[i].value = int8_t(bits);
    }
}

TRIOLET_INLINE float factor_of(bf16 scale) {
    return scale.bits == kNotFinite.bits ? __builtin_nanf("") : to_float(scale);
}

}  // namespace
