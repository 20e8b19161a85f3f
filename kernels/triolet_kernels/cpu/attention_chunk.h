// One step of online softmax (Milakov and Gimelshein 2018): some rows of queries against one chunk of keys.
//
// A row is one query head of one token. What happens to a row depends on nothing but its own query, its position
// and the keys: not on the number of rows beside it, nor on chunks in which it sees no key, which leave it
// bit-identical (2^0 is exactly 1, a masked key weighs exactly 0).
#pragma once

#include "cache_codes.h"

namespace {

constexpr int64_t kSpan = 128;        // keys that are summed on their own, from a multiple of it on
constexpr int kChunk = 32;            // keys at a time, fewer where a block holds fewer
constexpr int kMaxChunks = 16;        // of a span: a block holds at least 8 keys
constexpr int64_t kMaxHeadDim = 256;
constexpr float kNoMaximum = -1e30f;  // below every score, above every masked one
constexpr float kMasked = -3e38f;

// Sums over the keys seen so far, relative to the largest exponent among them.
struct RowStates {
    float* maximum;  // (rows,) in units of log2
    float* sum;      // (rows,)
    float* values;   // (rows, head_dim)

    RowStates from(int row, int64_t head_dim) const {
        return {maximum + row, sum + row, values + row * head_dim};
    }

    void clear(int num_rows, int64_t head_dim) const {
        for (int row = 0; row < num_rows; ++row) maximum[row] = kNoMaximum, sum[row] = 0;
        memset(values, 0, sizeof(float) * num_rows * head_dim);
    }
};

struct ChunkGeometry {
    int64_t head_dim, block_size;
    int chunk;      // keys in a chunk
    float scale;    // of scores, times log2(e)
    int64_t window;  // keys seen, counted back from the row's own; 0 for all
};

template <class T>
struct Chunk {
    const T* keys;
    const T* values;
    int64_t first;  // position of the first key
    int num_keys;   // keys that have been written
};

// Of codes, which are read before the kernels get to see them.
template <>
struct Chunk<Code> {
    const Code* keys;
    const Code* values;
    const bf16* key_scales;
    const bf16* value_scales;
    int64_t first;  // position of the first key
    int num_keys;   // keys that have been written
};

// What a tile of rows sees of a span, in order.
template <class T>
struct Chunks {
    int count = 0;
    Chunk<T> chunk[kMaxChunks];

    // How many of them hold keys up to a position.
    int up_to(int64_t position) const {
        int seen = count;
        while (seen && chunk[seen - 1].first > position) --seen;
        return seen;
    }
};

// 2^x for x ≤ 0, exactly 0 where it no longer matters.
TRIOLET_INLINE Vec weight_of(Vec x) { return zero_below(exp2(x), x, -100.0f); }

TRIOLET_INLINE float weight_of(float x) {
    float lanes[kLanes];
    store(lanes, weight_of(splat(x)));
    return lanes[0];
}

// scores[row][key] = query · key for NV vectors of keys. query: [head_dim / P][ROWS][P].
template <class T, int ROWS, int NV>
TRIOLET_INLINE void score_keys(const T* keys, const T* query, const ChunkGeometry& geometry, float* scores) {
    constexpr int64_t P = PairSize<T>::value;
    Vec sum[ROWS][NV];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) sum[row][v] = splat(0);
    for (int64_t d = 0; d < geometry.head_dim / P; ++d) {
        decltype(load_pairs(keys)) key[NV];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) key[v] = load_pairs(keys + (d * geometry.block_size + v * kLanes) * P);
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            auto q = splat_pair(query + (d * ROWS + row) * P);
#pragma GCC unroll 2
            for (int v = 0; v < NV; ++v) sum[row][v] = dot(sum[row][v], key[v], q);
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) store(scores + row * kChunk + v * kLanes, sum[row][v]);
}

// output = output * rescale + weights · values for NV vectors of dimensions.
template <class T, int ROWS, int NV>
TRIOLET_INLINE void add_values(const T* values, const T* weights, int num_keys, int64_t head_dim,
                               const float* rescale, float* output) {
    constexpr int64_t P = PairSize<T>::value;
    Vec sum[ROWS][NV];
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v)
            sum[row][v] = mul(load(output + row * head_dim + v * kLanes), splat(rescale[row]));
    auto add_pairs = [&](int64_t pair, auto prepare) __attribute__((always_inline)) {
        decltype(load_pairs(values)) value[NV];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) value[v] = prepare(load_pairs(values + (pair * head_dim + v * kLanes) * P));
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) {
            auto weight = splat_pair(weights + row * kChunk + pair * P);
#pragma GCC unroll 2
            for (int v = 0; v < NV; ++v) sum[row][v] = dot(sum[row][v], value[v], weight);
        }
    };
    for (int64_t pair = 0; pair < num_keys / P; ++pair) add_pairs(pair, [](auto pairs) { return pairs; });
    if constexpr (P == 2) {
        // The second value of the last pair may never have been written, and 0 times NaN is NaN.
        if (num_keys % P) add_pairs(num_keys / P, [](auto pairs) { return first_of_pairs(pairs); });
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) store(output + row * head_dim + v * kLanes, sum[row][v]);
}

// Puts one row's scores in units of log2, hides keys outside of first:end; returns the largest so far.
TRIOLET_INLINE float scale_scores(float* scores, int first, int end, const ChunkGeometry& geometry, float before) {
    Vec largest = splat(kMasked);
    for (int begin = 0; begin < geometry.chunk; begin += kLanes) {
        Vec scaled = mul(load(scores + begin), splat(geometry.scale));
        if (first > begin || end < begin + kLanes) {
            int low = first - begin < 0 ? 0 : first - begin > kLanes ? kLanes : first - begin;
            int high = end - begin < 0 ? 0 : end - begin > kLanes ? kLanes : end - begin;
            scaled = keep_lanes(scaled, low, high, kMasked);
        }
        store(scores + begin, scaled);
        largest = max(largest, scaled);
    }
    float now = max_lanes(largest);
    return now > before ? now : before;
}

// Turns one row's scores into weights; adds them to what was summed before, in its new scale.
template <class T>
TRIOLET_INLINE void weigh_scores(const float* scores, T* weights, const ChunkGeometry& geometry, float maximum,
                                 float rescale, float* sums) {
    Vec sum = splat(0);
    for (int begin = 0; begin < geometry.chunk; begin += kLanes) {
        Vec weight = weight_of(sub(load(scores + begin), splat(maximum)));
        store(weights + begin, weight);
        sum = add(sum, weight);
    }
    store(sums, add(mul(load(sums), splat(rescale)), sum));
}

// Softmax of up to MAX_ROWS rows: scores to weights, with the factors for what was summed before.
template <class T, int MAX_ROWS>
TRIOLET_INLINE void weigh_rows(int count, float* scores, T* weights, const int64_t* positions, int64_t first_key,
                               const ChunkGeometry& geometry, float* maximum, float* sums, float* rescale) {
    constexpr int kPadded = (MAX_ROWS + kLanes - 1) / kLanes * kLanes;
    alignas(64) float change[kPadded] = {};
    for (int row = 0; row < count; ++row) {
        int64_t end = positions[row] + 1 - first_key;
        int64_t first = geometry.window ? end - geometry.window : 0;
        float now = scale_scores(scores + row * kChunk, first < 0 ? 0 : int(first), end > kChunk ? kChunk : int(end),
                                 geometry, maximum[row]);
        change[row] = maximum[row] - now;
        maximum[row] = now;
    }
    // For all rows at once: for each alone it would take as long as the weights of its scores.
    for (int row = 0; row < kPadded; row += kLanes) store(change + row, weight_of(load(change + row)));
    for (int row = 0; row < count; ++row) {
        rescale[row] = change[row];
        weigh_scores(scores + row * kChunk, weights + row * kChunk, geometry, maximum[row], change[row],
                     sums + row * kLanes);
    }
}

// Brings ROWS rows one chunk further. sums: (rows, kLanes), added up by the caller at the end of a span.
template <class T, int ROWS>
void attend_rows(const Chunk<T>& chunk, const T* query, const int64_t* positions, const ChunkGeometry& geometry,
                 float* maximum, float* sums, float* values) {
    constexpr int64_t P = PairSize<T>::value;
    alignas(64) float scores[ROWS * kChunk];
    alignas(64) T weights[ROWS * kChunk];
    float rescale[ROWS];
    int v = 0;
    for (; v + 2 * kLanes <= geometry.chunk; v += 2 * kLanes)
        score_keys<T, ROWS, 2>(chunk.keys + v * P, query, geometry, scores + v);
    if (v < geometry.chunk) score_keys<T, ROWS, 1>(chunk.keys + v * P, query, geometry, scores + v);
    weigh_rows<T, ROWS>(ROWS, scores, weights, positions, chunk.first, geometry, maximum, sums, rescale);
    int64_t d = 0;
    for (; d + 2 * kLanes <= geometry.head_dim; d += 2 * kLanes)
        add_values<T, ROWS, 2>(chunk.values + d * P, weights, chunk.num_keys, geometry.head_dim, rescale, values + d);
    if (d < geometry.head_dim)
        add_values<T, ROWS, 1>(chunk.values + d * P, weights, chunk.num_keys, geometry.head_dim, rescale, values + d);
}

// Rows of queries in vectors, of any number format.
template <class T>
struct VectorRows {
    static constexpr int kTileRows = 32;   // that one thread carries through the keys
    static constexpr int kGroupRows = 32;  // of them, that go through a span together
    static constexpr int kRows = kMaxTileRows;

    struct Session {};

    // Puts down one row of a group of `num_rows`: [head_dim / P][rows that go through a chunk together][P].
    static void put_query(const T* source, int row, int num_rows, int64_t head_dim, T* query) {
        constexpr int64_t P = PairSize<T>::value;
        int first = row / kRows * kRows, count = num_rows - first < kRows ? num_rows - first : kRows;
        T* target = query + first * head_dim + (row - first) * P;
        for (int64_t d = 0; d < head_dim; ++d) target[d / P * count * P + d % P] = source[d];
    }

    // Pieces of work beside which to fetch: chunks.
    static int64_t num_pieces(int64_t num_chunks, int64_t, int64_t) { return num_chunks; }

    // Sums of a group of rows over a span. What comes next is fetched on the way.
    template <class Fetching>
    static void attend(Session&, int num_rows, const Chunks<T>& chunks, Fetching& fetching, const T* query,
                       const int64_t* positions, const ChunkGeometry& geometry, const RowStates& states) {
        alignas(64) float sums[kGroupRows * kLanes] = {};
        states.clear(num_rows, geometry.head_dim);
        for (int i = 0; i < chunks.count; ++i) {
            fetching.beside();
            for (int row = 0; row < num_rows; row += kRows) {
                int count = num_rows - row < kRows ? num_rows - row : kRows;
                if (chunks.chunk[i].first > positions[row + count - 1]) continue;
                kernel_for(count)(chunks.chunk[i], query + row * geometry.head_dim, positions + row, geometry,
                                  states.maximum + row, sums + row * kLanes, states.values + row * geometry.head_dim);
            }
        }
        for (int row = 0; row < num_rows; ++row) states.sum[row] = sum_lanes(load(sums + row * kLanes));
    }

private:
    using Kernel = void (*)(const Chunk<T>&, const T*, const int64_t*, const ChunkGeometry&, float*, float*, float*);

    static Kernel kernel_for(int count) {
        switch (count) {
            case 1: return attend_rows<T, 1>;
            case 2: return attend_rows<T, 2>;
            case 3: return attend_rows<T, 3>;
#if defined(__AVX512BF16__)
            case 4: return attend_rows<T, 4>;
            case 5: return attend_rows<T, 5>;
            case 6: return attend_rows<T, 6>;
            case 7: return attend_rows<T, 7>;
#endif
            default: return attend_rows<T, kMaxTileRows>;
        }
    }
};

// How rows of a number format are brought through the keys.
template <class T>
struct RowsOf {
    using type = VectorRows<T>;
};

}  // namespace
