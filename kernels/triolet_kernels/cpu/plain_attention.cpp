// Causal attention over a paged cache for shapes that vectors do not divide: one query head of one token at a time.
//
// Slow beside attention.cpp, and as strict: what comes out for a token depends on its query and its keys, which are
// taken in order one by one, and on nothing else. Compiled for the oldest CPU.

#include "cache_layout.h"
#include "parallel.h"

namespace {

constexpr int64_t kMaxHeadDim = 1024;
constexpr float kLog2E = 1.4426950408889634f;

// 2^x, exactly 1 at 0.
TRIOLET_INLINE float power_of_two(float x) {
    float lanes[kLanes];
    store(lanes, exp2(splat(x)));
    return lanes[0];
}

template <class T>
struct PlainAttention {
    const T* query;
    const T* key_cache;
    const T* value_cache;
    T* output;
    const int64_t* positions;
    const int32_t* block_tables;
    const int32_t* query_starts;
    int64_t table_stride, num_heads, num_kv_heads, head_dim, block_size;
    float scale;  // of scores, times log2(e)
    int64_t window;

    float score(const float* head, const T* page, int64_t offset) const {
        float sum = 0;
        for (int64_t d = 0; d < head_dim; ++d) sum += head[d] * to_float(page[key_index<T>(offset, d, block_size)]);
        return sum * scale;
    }

    // Online softmax (Milakov and Gimelshein 2018), a key at a time.
    void attend(const T* source, T* target, const int32_t* table, int64_t group, int64_t position) const {
        float head[kMaxHeadDim], values[kMaxHeadDim];
        for (int64_t d = 0; d < head_dim; ++d) head[d] = to_float(source[d]), values[d] = 0;
        float maximum = -1e30f, sum = 0;
        for (int64_t key = window && position >= window ? position - window + 1 : 0; key <= position; ++key) {
            int64_t page = (table[key / block_size] * num_kv_heads + group) * block_size * head_dim;
            float current = score(head, key_cache + page, key % block_size), rescale = 1;
            if (current > maximum) {
                rescale = power_of_two(maximum - current);
                maximum = current;
            }
            float weight = power_of_two(current - maximum);
            sum = sum * rescale + weight;
            for (int64_t d = 0; d < head_dim; ++d) {
                float value = to_float(value_cache[page + value_index<T>(key % block_size, d, head_dim)]);
                values[d] = values[d] * rescale + weight * value;
            }
        }
        for (int64_t d = 0; d < head_dim; ++d) put(target + d, values[d] / sum);
    }

    void token(int64_t index, int64_t sequence) const {
        for (int64_t h = 0; h < num_heads; ++h) {
            int64_t start = (index * num_heads + h) * head_dim;
            attend(query + start, output + start, block_tables + sequence * table_stride,
                   h / (num_heads / num_kv_heads), positions[index]);
        }
    }

    void run(int64_t num_sequences, RunTeam run_team, int64_t num_threads) const {
        for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
            int64_t first = query_starts[sequence], count = query_starts[sequence + 1] - first;
            for_each_unit(run_team, num_threads, count, [&](int64_t i) { token(first + i, sequence); });
        }
    }
};

}  // namespace

// As paged_attention in attention.cpp, for any even head_dim up to 1024 and any even block_size.
#define TRIOLET_PLAIN_ATTENTION(name, T)                                                                           \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* query, const T* key_cache, const T* value_cache, T* output, const int64_t* positions,                \
     const int32_t* block_tables, const int32_t* query_starts, int64_t, int64_t num_sequences,                     \
     int64_t table_stride, int64_t, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,                     \
     int64_t block_size, float scale, int64_t window, RunTeam run_team, int64_t num_threads) {                     \
        PlainAttention<T> attention = {query,        key_cache, value_cache,    output,   positions,  block_tables, \
                                       query_starts, table_stride, num_heads, num_kv_heads, head_dim, block_size,  \
                                       scale * kLog2E, window};                                                    \
        attention.run(num_sequences, run_team, num_threads);                                                       \
    }

TRIOLET_PLAIN_ATTENTION(plain_attention_float32, float)
TRIOLET_PLAIN_ATTENTION(plain_attention_bfloat16, bf16)
