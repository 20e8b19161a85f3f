// A step of a model as one call: kernels run one after the other, with arguments that were written down before.
//
// What differs from step to step, such as the number of tokens and where their block tables are, is a variable: an
// argument names it, and its value comes with the call. Compiled for the oldest CPU; knows no kernel but by its type.

#include <stdint.h>
#include <string.h>

#include <utility>

#include "program.h"

namespace {

// An argument as 64 bits: an integer, an address, or a float in the lower half.
template <class T>
T from_word(int64_t word) {
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
}

template <class... A, size_t... I>
bool call(void* kernel, const int64_t* words, RunTeam run_team, int64_t num_threads, std::index_sequence<I...>) {
    return reinterpret_cast<bool (*)(A..., RunTeam, int64_t)>(kernel)(from_word<A>(words[I])..., run_team, num_threads);
}

struct Argument {
    int64_t value;     // itself where it is no variable, else what the variable is multiplied by
    int64_t variable;  // which variable, or -1
};

struct Operation {
    Caller caller;
    void* kernel;
    const Argument* arguments;
    int64_t num_arguments;
};

constexpr int64_t kMaxArguments = 32;

typedef void* P;
typedef int64_t I;
typedef float F;

}  // namespace

// How a kernel of each name is called; loader.py says what its arguments mean.
#define TRIOLET_CALLER(name, num_arguments, ...)                                                                   \
    extern "C" __attribute__((visibility("default"))) bool triolet_call_##name(                                    \
        void* kernel, const int64_t* words, RunTeam run_team, int64_t num_threads) {                               \
        return call<__VA_ARGS__>(kernel, words, run_team, num_threads, std::make_index_sequence<num_arguments>()); \
    }

TRIOLET_CALLER(rms_norm, 6, P, P, P, I, I, F)
TRIOLET_CALLER(rms_norm_of_float32, 6, P, P, P, I, I, F)
TRIOLET_CALLER(add_rms_norm, 7, P, P, P, P, I, I, F)
TRIOLET_CALLER(norm_columns, 7, P, P, I, I, I, I, F)
TRIOLET_CALLER(silu_mul, 4, P, P, I, I)
TRIOLET_CALLER(gelu_mul, 4, P, P, I, I)
TRIOLET_CALLER(to_float32, 4, P, P, I, I)
TRIOLET_CALLER(draw, 13, P, P, P, P, P, P, P, P, P, P, P, I, I)
TRIOLET_CALLER(take_rows, 5, P, P, P, I, I)
TRIOLET_CALLER(linear, 9, P, P, P, P, I, I, I, I, I)
TRIOLET_CALLER(dense_linear, 7, P, P, P, P, I, I, I)
TRIOLET_CALLER(tile_linear, 9, P, P, P, P, I, I, I, I, F)
TRIOLET_CALLER(silu_tile_linear, 9, P, P, P, P, I, I, I, I, F)
TRIOLET_CALLER(gelu_tile_linear, 9, P, P, P, P, I, I, I, I, F)
TRIOLET_CALLER(route, 9, P, P, P, P, P, I, I, I, I)
TRIOLET_CALLER(expert_linear, 12, P, P, P, P, P, P, I, I, I, I, I, I)
TRIOLET_CALLER(sum_experts, 7, P, P, P, P, I, I, I)
TRIOLET_CALLER(add_shared_expert, 5, P, P, P, I, I)
TRIOLET_CALLER(rotary_and_cache, 15, P, P, P, P, P, P, P, I, I, I, I, I, P, P, F)
TRIOLET_CALLER(rotary_and_codes, 15, P, P, P, P, P, P, P, I, I, I, I, I, P, P, F)
TRIOLET_CALLER(paged_attention, 17, P, P, P, P, P, P, P, I, I, I, I, I, I, I, I, F, I)
TRIOLET_CALLER(paged_attention_of_codes, 17, P, P, P, P, P, P, P, I, I, I, I, I, I, I, I, F, I)
TRIOLET_CALLER(plain_attention_of_codes, 17, P, P, P, P, P, P, P, I, I, I, I, I, I, I, I, F, I)
TRIOLET_CALLER(plain_attention, 17, P, P, P, P, P, P, P, I, I, I, I, I, I, I, I, F, I)

// Whether all kernels had the memory they needed; it ends with the first that had not.
extern "C" __attribute__((visibility("default"))) bool triolet_run_program(const Operation* operations,
                                                                           int64_t num_operations,
                                                                           const int64_t* variables, RunTeam run_team,
                                                                           int64_t num_threads) {
    int64_t words[kMaxArguments];
    for (const Operation* operation = operations; operation < operations + num_operations; ++operation) {
        for (int64_t i = 0; i < operation->num_arguments; ++i) {
            const Argument& argument = operation->arguments[i];
            words[i] = argument.variable < 0 ? argument.value : argument.value * variables[argument.variable];
        }
        if (!operation->caller(operation->kernel, words, run_team, num_threads)) return false;
    }
    return true;
}
