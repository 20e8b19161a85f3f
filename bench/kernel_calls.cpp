// Calls one kernel of the compiled library once, on fixed inputs and one thread, for callgrind to count.
//
//     kernel_calls LIBRARY CALL
//
// The sizes are those of a small model. Only the AVX2 variants, which valgrind knows.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <vector>

namespace {

constexpr int64_t kWidth = 576, kOutputs = 960, kRows = 8, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kBlock = 32;
constexpr int64_t kKeys = 200, kPages = (kKeys + kBlock - 1) / kBlock;

// Bytes below 0x3c: as bfloat16, float16, float32 and codes all small and finite.
std::vector<uint8_t> bytes(int64_t count) {
    std::vector<uint8_t> values(count);
    uint32_t state = 1;
    for (auto& value : values) value = (state = state * 1664525 + 1013904223) / 65536 % 0x3c;
    return values;
}

template <class... A>
bool call(void* kernel, A... arguments) {
    return reinterpret_cast<bool (*)(A..., void*, int64_t)>(kernel)(arguments..., nullptr, 1);
}

bool run_linear(void* kernel, int64_t rows) {
    auto x = bytes(2 * rows * kWidth), weights = bytes(kWidth * kOutputs / 32 * 20), output = bytes(2 * rows * kOutputs);
    return call(kernel, x.data(), weights.data(), nullptr, output.data(), rows, kWidth, kOutputs, int64_t(4), int64_t(0));
}

bool run_dense(void* kernel, int64_t rows, int64_t size) {
    auto x = bytes(size * rows * kWidth), weights = bytes(size * kWidth * kOutputs), output = bytes(size * rows * kOutputs);
    return call(kernel, x.data(), weights.data(), nullptr, output.data(), rows, kWidth, kOutputs);
}

// An entry of the cache is the key or the value of one head and token.
bool run_attention(void* kernel, int64_t first, int64_t size, int64_t entry_bytes) {
    const int64_t count = kKeys - first, cache = kPages * kKvHeads * kBlock * entry_bytes;
    auto query = bytes(count * kHeads * kHeadDim * size), keys = bytes(cache), values = bytes(cache), output = query;
    std::vector<int64_t> positions;
    std::vector<int32_t> table, starts = {0, int32_t(count)};
    for (int64_t token = first; token < kKeys; ++token) positions.push_back(token);
    for (int64_t page = 0; page < kPages; ++page) table.push_back(int32_t(kPages - 1 - page));
    return call(kernel, query.data(), keys.data(), values.data(), output.data(), positions.data(), table.data(),
                starts.data(), count, int64_t(1), kPages, kKeys, kHeads, kKvHeads, kHeadDim, kBlock, 0.125f, int64_t(0));
}

bool run_norm(void* kernel) {
    auto x = bytes(2 * kRows * kWidth), weight = bytes(4 * kWidth), output = x;
    return call(kernel, x.data(), weight.data(), output.data(), kRows, kWidth, 1e-5f);
}

bool run_activation(void* kernel) {
    auto x = bytes(2 * kRows * 2 * kOutputs), output = bytes(2 * kRows * kOutputs);
    return call(kernel, x.data(), output.data(), kRows, kOutputs);
}

struct Call {
    const char *name, *symbol;
    bool (*run)(void* kernel);
};

const Call kCalls[] = {
    {"linear, 1 row", "triolet_linear_bfloat16_avx2", [](void* kernel) { return run_linear(kernel, 1); }},
    {"linear, 8 rows", "triolet_linear_bfloat16_avx2", [](void* kernel) { return run_linear(kernel, kRows); }},
    {"float32 linear, 8 rows", "triolet_dense_linear_float32_avx2", [](void* kernel) { return run_dense(kernel, kRows, 4); }},
    {"bfloat16 linear, 8 rows", "triolet_dense_linear_bfloat16_avx2",
     [](void* kernel) { return run_dense(kernel, kRows, 2); }},
    {"attention, 1 row", "triolet_paged_attention_bfloat16_avx2",
     [](void* kernel) { return run_attention(kernel, kKeys - 1, 2, 2 * kHeadDim); }},
    {"attention to codes, 1 row", "triolet_paged_attention_of_codes_bfloat16_avx2",
     [](void* kernel) { return run_attention(kernel, kKeys - 1, 2, kHeadDim + 2); }},
    {"attention, 200 rows", "triolet_paged_attention_bfloat16_avx2",
     [](void* kernel) { return run_attention(kernel, 0, 2, 2 * kHeadDim); }},
    {"float32 attention, 200 rows", "triolet_paged_attention_float32_avx2",
     [](void* kernel) { return run_attention(kernel, 0, 4, 4 * kHeadDim); }},
    {"norm, 8 rows", "triolet_rms_norm_bfloat16_avx2", run_norm},
    {"gated activation, 8 rows", "triolet_silu_mul_bfloat16_avx2", run_activation},
};

}  // namespace

// Without a name of a call: prints all names, and the symbol of each after a tab.
int main(int argc, char** argv) {
    if (argc < 3) {
        for (const Call& each : kCalls) printf("%s\t%s\n", each.name, each.symbol);
        return 0;
    }
    void* library = dlopen(argv[1], RTLD_NOW);
    for (const Call& each : kCalls)
        if (library && strcmp(argv[2], each.name) == 0)
            if (void* kernel = dlsym(library, each.symbol)) return each.run(kernel) ? 0 : 1;
    fprintf(stderr, "%s: no such call, or no such library\n", argv[2]);
    return 2;
}
