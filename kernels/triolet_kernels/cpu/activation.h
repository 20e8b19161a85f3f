// What gates go through in gated feed-forward networks. Knows nothing of where they come from.
#pragma once

#include "simd.h"

namespace {

constexpr float kLog2E = 1.4426950408889634f;

// x / (1 + e^-x)
struct Silu {
    static TRIOLET_INLINE Vec apply(Vec x) {
        return div(x, add(splat(1), exp2(mul(x, splat(-kLog2E)))));
    }
};

// x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x³): the tanh form of GELU
struct Gelu {
    static TRIOLET_INLINE Vec apply(Vec x) {
        Vec u = mul(x, fma(mul(x, x), splat(0.044715f * 0.7978845608f), splat(0.7978845608f)));
        return div(x, add(splat(1), exp2(mul(u, splat(-2 * kLog2E)))));
    }
};

}  // namespace
