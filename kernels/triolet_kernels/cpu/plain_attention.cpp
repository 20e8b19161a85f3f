// Causal attention over a paged cache for shapes that vectors do not divide: one query head of one token at a time.
//
// Slow beside attention.cpp, and as strict: what comes out for a token depends on its query and its keys, which are
// taken in order one by one, and on nothing else. Compiled for the oldest CPU.

#include "cache_codes.h"
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

// Of queries of T over a cache of E.
template <class T, class E>
struct PlainAttention {
    const T* query;
    const E* key_cache;
    const E* value_cache;
    T* output;
    const int64_t* positions;
    const int32_t* block_tables;
    const int32_t* query_starts;
    int64_t num_sequences, table_stride, num_heads, num_kv_heads, head_dim, block_size;
    float scale;  // of scores, times log2(e)
    int64_t window;

    // What is at an index of a page, of the token at an offset.
    float value_at(const T* page, int64_t index, int64_t) const { return to_float(page[index]); }
    float value_at(const Code* page, int64_t index, int64_t offset) const {
        return float(page[index].value) * factor_of(scales_of(page, block_size, head_dim)[offset]);
    }

    float score(const float* head, const E* page, int64_t offset) const {
        float sum = 0;
        for (int64_t d = 0; d < head_dim; ++d)
            sum += head[d] * value_at(page, key_index<T>(offset, d, block_size), offset);
        return sum * scale;
    }

    // Online softmax (Milakov and Gimelshein 2018), a key at a time.
    void attend(const T* source, T* target, const int32_t* table, int64_t group, int64_t position) const {
        float head[kMaxHeadDim], values[kMaxHeadDim];
        for (int64_t d = 0; d < head_dim; ++d) head[d] = to_float(source[d]), values[d] = 0;
        float maximum = -1e30f, sum = 0;
        for (int64_t key = window && position >= window ? position - window + 1 : 0; key <= position; ++key) {
            int64_t page = (table[key / block_size] * num_kv_heads + group) * page_size<E>(block_size, head_dim);
            const int64_t offset = key % block_size;
            float current = score(head, key_cache + page, offset), rescale = 1;
            if (current > maximum) {
                rescale = power_of_two(maximum - current);
                maximum = current;
            }
            float weight = power_of_two(current - maximum);
            sum = sum * rescale + weight;
            for (int64_t d = 0; d < head_dim; ++d) {
                float value = value_at(value_cache + page, value_index<T>(offset, d, head_dim), offset);
                values[d] = values[d] * rescale + weight * value;
            }
        }
        for (int64_t d = 0; d < head_dim; ++d) put(target + d, values[d] / sum);
    }

    // The sequence that a token belongs to: the last one that starts no later.
    int64_t sequence_of(int64_t token) const {
        int64_t first = 0, end = num_sequences;
        while (end - first > 1) {
            int64_t middle = (first + end) / 2;
            (query_starts[middle] <= token ? first : end) = middle;
        }
        return first;
    }

    // Heads of tokens are shared out, so that there is work for all even where each sequence has one token.
    void run(int64_t num_tokens, RunTeam run_team, int64_t num_threads) const {
        for_each_unit(run_team, num_threads, num_tokens * num_heads, [&](int64_t unit) {
            int64_t token = unit / num_heads, head = unit % num_heads;
            attend(query + unit * head_dim, output + unit * head_dim, block_tables + sequence_of(token) * table_stride,
                   head / (num_heads / num_kv_heads), positions[token]);
        });
    }
};

}  // namespace

// As paged_attention in attention.cpp, for any even head_dim up to 1024 and any even block_size.
#define TRIOLET_PLAIN_ATTENTION(name, T, E)                                                                         \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* query, const E* key_cache, const E* value_cache, T* output, const int64_t* positions,                \
     const int32_t* block_tables, const int32_t* query_starts, int64_t num_tokens, int64_t num_sequences,          \
     int64_t table_stride, int64_t, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,                     \
     int64_t block_size, float scale, int64_t window, RunTeam run_team, int64_t num_threads) {                     \
        PlainAttention<T, E> attention = {query,        key_cache,    value_cache,  output,       positions,          \
                                       block_tables, query_starts, num_sequences, table_stride, num_heads,         \
                                       num_kv_heads, head_dim,     block_size,   scale * kLog2E, window};          \
        attention.run(num_tokens, run_team, num_threads);                                                          \
        return true;                                                                                               \
    }

TRIOLET_PLAIN_ATTENTION(plain_attention_float32, float, float)
TRIOLET_PLAIN_ATTENTION(plain_attention_bfloat16, bf16, bf16)
TRIOLET_PLAIN_ATTENTION(plain_attention_of_codes_float32, float, Code)
TRIOLET_PLAIN_ATTENTION(plain_attention_of_codes_bfloat16, bf16, Code)
