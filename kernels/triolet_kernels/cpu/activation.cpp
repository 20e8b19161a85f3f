// Gated activations: act(gate) * up for rows of gates followed by ups.

#include "parallel.h"
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

template <class Activation, class T>
void gated(const T* gate_up, T* output, int64_t num_rows, int64_t size, RunTeam run_team, int64_t num_threads) {
    for_each_row(run_team, num_threads, num_rows, 2 * size, [=](int64_t row) {
        const T* gate = gate_up + row * 2 * size;
        const T* up = gate + size;
        T* target = output + row * size;
        int64_t i = 0;
        for (; i + kLanes <= size; i += kLanes)
            store(target + i, mul(Activation::apply(load(gate + i)), load(up + i)));
        for (; i < size; ++i) {
            float result[kLanes];
            store(result, Activation::apply(splat(to_float(gate[i]))));
            put(target + i, result[0] * to_float(up[i]));
        }
    });
}

}  // namespace

// gate_up (num_rows, 2 size) → output (num_rows, size)
#define TRIOLET_GATED(name, Activation, T)                                                                         \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* gate_up, T* output, int64_t num_rows, int64_t size, RunTeam run_team, int64_t num_threads) {         \
        gated<Activation>(gate_up, output, num_rows, size, run_team, num_threads);                                 \
        return true;                                                                                               \
    }

TRIOLET_GATED(silu_mul_float32, Silu, float)
TRIOLET_GATED(silu_mul_bfloat16, Silu, bf16)
TRIOLET_GATED(gelu_mul_float32, Gelu, float)
TRIOLET_GATED(gelu_mul_bfloat16, Gelu, bf16)
