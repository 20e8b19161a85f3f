// Head norms, rotary embedding (half-split form) and the writing of keys and values to the paged cache.

#include "cache_codes.h"
#include "norm.h"
#include "parallel.h"

namespace {

constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kCostOfStores = 4;  // a row takes so much longer than one that is only read: a key is all over a block

// head = rotation of (normalised) source; `angles` holds size / 2 cosines, then as many sines.
template <class T>
void rotate_head(T* head, const T* source, const float* norm, float eps, const float* angles, int64_t size) {
    alignas(64) float x[kMaxHeadDim];
    read_row(x, source, size);
    if (norm) scale_row(x, x, inverse_rms(x, size, eps), norm, size);
    int64_t half = size / 2, i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        Vec low = load(x + i), high = load(x + half + i), cos = load(angles + i), sin = load(angles + half + i);
        store(head + i, sub(mul(low, cos), mul(high, sin)));
        store(head + half + i, add(mul(high, cos), mul(low, sin)));
    }
    for (; i < half; ++i) {
        float cos = angles[i], sin = angles[half + i];
        put(head + i, x[i] * cos - x[half + i] * sin);
        put(head + half + i, x[half + i] * cos + x[i] * sin);
    }
}

template <class T, class E>
struct Rotary {
    const T* qkv;
    const int64_t* positions;
    const int64_t* cache_slots;
    const float* cos_sin;
    E* key_cache;
    E* value_cache;
    T* query;
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    const float* q_norm;
    const float* k_norm;
    float eps;

    void token(int64_t index) const {
        const T* source = qkv + index * (num_heads + 2 * num_kv_heads) * head_dim;
        const float* angles = cos_sin + positions[index] * head_dim;
        for (int64_t h = 0; h < num_heads; ++h, source += head_dim)
            rotate_head(query + (index * num_heads + h) * head_dim, source, q_norm, eps, angles, head_dim);
        int64_t block = cache_slots[index] / block_size, offset = cache_slots[index] % block_size;
        for (int64_t g = 0; g < num_kv_heads; ++g, source += head_dim) {
            int64_t page = (block * num_kv_heads + g) * page_size<E>(block_size, head_dim);
            alignas(64) T key[kMaxHeadDim];
            rotate_head(key, source, k_norm, eps, angles, head_dim);
            keep(key, source + num_kv_heads * head_dim, key_cache + page, value_cache + page, offset);
        }
    }

    // Puts a key and a value to their places in a block.
    void keep(const T* key, const T* value, T* keys, T* values, int64_t offset) const {
        constexpr int64_t P = PairSize<T>::value;
        for (int64_t i = 0; i < head_dim; i += P)
            memcpy(keys + key_index<T>(offset, i, block_size), key + i, P * sizeof(T));
        int64_t i = 0;
        if constexpr (P == 2) {
            // Whole vectors: lines on their way from memory are as many as the stores that wait for them.
            bf16* pairs = values + value_index<T>(offset / P * P, 0, head_dim);
            for (; i + kLanes <= head_dim; i += kLanes) store_in_pairs(pairs + i * P, value + i, int(offset % P));
        }
        for (; i < head_dim; ++i) values[value_index<T>(offset, i, head_dim)] = value[i];
    }
    void keep(const T* key, const T* value, Code* keys, Code* values, int64_t offset) const {
        keep_codes(key, keys, offset, [&](int64_t i) { return key_index<T>(offset, i, block_size); });
        keep_codes(value, values, offset, [&](int64_t i) { return value_index<T>(offset, i, head_dim); });
    }

    template <class Place>
    TRIOLET_INLINE void keep_codes(const T* row, Code* page, int64_t offset, const Place& place) const {
        Code codes[kMaxHeadDim];
        const bf16 scale = scale_for(row, head_dim);
        encode(row, head_dim, scale, codes);
        for (int64_t i = 0; i < head_dim; ++i) page[place(i)] = codes[i];
        scales_of(page, block_size, head_dim)[offset] = scale;
    }
};

}  // namespace

// qkv (num_tokens, (num_heads + 2 num_kv_heads) head_dim); cos_sin (positions, head_dim); norms (head_dim,) or null;
// query (num_tokens, num_heads, head_dim) is written. head_dim is even and at most 1024, block_size even.
#define TRIOLET_ROTARY(name, T, E)                                                                                 \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* qkv, const int64_t* positions, const int64_t* cache_slots, const float* cos_sin, E* key_cache,       \
     E* value_cache, T* query, int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,      \
     int64_t block_size, const float* q_norm, const float* k_norm, float eps, RunTeam run_team,                    \
     int64_t num_threads) {                                                                                        \
        Rotary<T, E> rotary = {qkv,       positions,    cache_slots, cos_sin,    key_cache, value_cache, query,    \
                               num_heads, num_kv_heads, head_dim,    block_size, q_norm,    k_norm,      eps};     \
        int64_t row_size = (num_heads + 2 * num_kv_heads) * head_dim * kCostOfStores;                              \
        for_each_row(run_team, num_threads, num_tokens, row_size, [&](int64_t index) { rotary.token(index); });    \
        return true;                                                                                               \
    }

TRIOLET_ROTARY(rotary_and_cache_float32, float, float)
TRIOLET_ROTARY(rotary_and_cache_bfloat16, bf16, bf16)
TRIOLET_ROTARY(rotary_and_codes_float32, float, Code)
TRIOLET_ROTARY(rotary_and_codes_bfloat16, bf16, Code)
