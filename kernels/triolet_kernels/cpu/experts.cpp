// The linear layers of a mixture of experts: each expert's rows go through a kernel of dense or quantised weights.
//
// Which bits come out for a row is that kernel's affair, and it does not let them depend on the other rows. Compiled for
// the oldest CPU; knows no kernel but by what calls it.

#include "parallel.h"
#include "program.h"
#include "simd.h"

namespace {

constexpr int64_t kFormatWords = 2;  // that kernels take at most, after the shape

template <class T>
struct ExpertLinear {
    Caller caller;
    void* kernel;
    const T* x;
    const uint8_t* weights;
    const int32_t* starts;
    T* output;
    int64_t num_experts, weight_size, width, num_outputs;
    int64_t format[kFormatWords];

    // False if a kernel gets no memory.
    bool run(RunTeam run_team, int64_t num_threads) const {
        for (int64_t expert = 0; expert < num_experts; ++expert) {
            int64_t first = starts[expert], num_rows = starts[expert + 1] - first;
            if (num_rows == 0) continue;
            const int64_t words[] = {address(x + first * width),
                                     address(weights + expert * weight_size),
                                     0,  // no bias
                                     address(output + first * num_outputs),
                                     num_rows,
                                     width,
                                     num_outputs,
                                     format[0],
                                     format[1]};
            if (!caller(kernel, words, run_team, num_threads)) return false;
        }
        return true;
    }

    static int64_t address(const void* pointer) { return int64_t(pointer); }
};

}  // namespace

// x (starts[num_experts], width), sorted by expert: rows starts[e]:starts[e + 1] times the weight of expert e, which is
// weight_size bytes after the one before → output (…, num_outputs). `caller` calls `kernel`, a linear layer, with the
// words of its format last.
#define TRIOLET_EXPERT_LINEAR(name, T)                                                                             \
    TRIOLET_EXPORT(name)                                                                                           \
    (Caller caller, void* kernel, const T* x, const uint8_t* weights, const int32_t* starts, T* output,            \
     int64_t num_experts, int64_t weight_size, int64_t width, int64_t num_outputs, int64_t format0,                \
     int64_t format1, RunTeam run_team, int64_t num_threads) {                                                     \
        ExpertLinear<T> linear = {caller,      kernel,      x,     weights,     starts,            output,         \
                                  num_experts, weight_size, width, num_outputs, {format0, format1}};               \
        return linear.run(run_team, num_threads);                                                                  \
    }

TRIOLET_EXPERT_LINEAR(expert_linear_float32, float)
TRIOLET_EXPERT_LINEAR(expert_linear_bfloat16, bf16)
