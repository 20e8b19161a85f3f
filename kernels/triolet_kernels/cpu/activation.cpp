// Gated activations: act(gate) * up for rows of gates followed by ups.

#include "activation.h"
#include "parallel.h"

namespace {

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
