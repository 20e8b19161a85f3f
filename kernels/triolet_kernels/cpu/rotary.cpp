// Head norms, rotary embedding (half-split form) and the writing of keys and values to the paged cache.

#include "cache_layout.h"
#include "norm.h"
#include "parallel.h"

namespace {

constexpr int64_t kMaxHeadDim = 1024;

// head = rotation of (normalised) source; `angles` holds size / 2 cosines, then as many sines.
template <class T>
void rotate_head(float* head, const T* source, const float* norm, float eps, const float* angles, int64_t size) {
    float x[kMaxHeadDim];
    for (int64_t i = 0; i < size; ++i) x[i] = to_float(source[i]);
    if (norm) scale_row(x, x, inverse_rms(x, size, eps), norm, size);
    int64_t half = size / 2;
    for (int64_t i = 0; i < half; ++i) {
        float cos = angles[i], sin = angles[half + i];
        head[i] = x[i] * cos - x[half + i] * sin;
        head[half + i] = x[half + i] * cos + x[i] * sin;
    }
}

template <class T>
struct Rotary {
    const T* qkv;
    const int64_t* positions;
    const int64_t* cache_slots;
    const float* cos_sin;
    T* key_cache;
    T* value_cache;
    T* query;
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    const float* q_norm;
    const float* k_norm;
    float eps;

    void token(int64_t index) const {
        const T* source = qkv + index * (num_heads + 2 * num_kv_heads) * head_dim;
        const float* angles = cos_sin + positions[index] * head_dim;
        float head[kMaxHeadDim];
        for (int64_t h = 0; h < num_heads; ++h, source += head_dim) {
            rotate_head(head, source, q_norm, eps, angles, head_dim);
            T* target = query + (index * num_heads + h) * head_dim;
            for (int64_t i = 0; i < head_dim; ++i) put(target + i, head[i]);
        }
        int64_t block = cache_slots[index] / block_size, offset = cache_slots[index] % block_size;
        for (int64_t g = 0; g < num_kv_heads; ++g, source += head_dim) {
            int64_t page = (block * num_kv_heads + g) * block_size * head_dim;
            const T* value = source + num_kv_heads * head_dim;
            rotate_head(head, source, k_norm, eps, angles, head_dim);
            for (int64_t i = 0; i < head_dim; ++i) {
                put(key_cache + page + key_index<T>(offset, i, block_size), head[i]);
                value_cache[page + value_index<T>(offset, i, head_dim)] = value[i];
            }
        }
    }
};

}  // namespace

// qkv (num_tokens, (num_heads + 2 num_kv_heads) head_dim); cos_sin (positions, head_dim); norms (head_dim,) or null;
// query (num_tokens, num_heads, head_dim) is written. head_dim is even and at most 1024, block_size even.
#define TRIOLET_ROTARY(name, T)                                                                                    \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* qkv, const int64_t* positions, const int64_t* cache_slots, const float* cos_sin, T* key_cache,       \
     T* value_cache, T* query, int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,      \
     int64_t block_size, const float* q_norm, const float* k_norm, float eps, RunTeam run_team,                    \
     int64_t num_threads) {                                                                                        \
        Rotary<T> rotary = {qkv,       positions,    cache_slots, cos_sin,    key_cache, value_cache, query,       \
                            num_heads, num_kv_heads, head_dim,    block_size, q_norm,    k_norm,      eps};        \
        int64_t row_size = (num_heads + 2 * num_kv_heads) * head_dim;                                              \
        for_each_row(run_team, num_threads, num_tokens, row_size, [&](int64_t index) { rotary.token(index); });    \
    }

TRIOLET_ROTARY(rotary_and_cache_float32, float)
TRIOLET_ROTARY(rotary_and_cache_bfloat16, bf16)
