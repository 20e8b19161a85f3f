// The same step of online softmax on matrix tiles (AMX-BF16): up to 16 rows of queries against one chunk of keys.
//
// Blocks of the cache are laid out as the tiles take them. As in vectors, what happens to a row depends on nothing
// but itself and the keys: each row of a tile is summed on its own, in one order.
#pragma once

#include "attention_chunk.h"
#include "tile_session.h"

#if defined(__AMX_BF16__)

namespace {

// Needs head_dim and the keys of a block to be multiples of 32.
struct TileRows {
    static constexpr int kRows = 16;

    using Session = WholeTileSession;

    static void put_query(const bf16* source, int64_t row, int64_t, int64_t head_dim, bf16* query) {
        memcpy(query + row * head_dim, source, head_dim * sizeof(bf16));
    }

    // Brings `count` rows one chunk further. query: [16][head_dim]. sums: (rows, kLanes).
    static void attend(int count, const Chunk<bf16>& chunk, const bf16* query, const int64_t* positions,
                       const ChunkGeometry& geometry, float* maximum, float* sums, float* values) {
        alignas(64) float scores[kRows * kChunk];
        alignas(64) bf16 weights[kRows * kChunk];
        float rescale[kRows];
        score_keys(chunk.keys, query, geometry, scores);
        asm volatile("" ::: "memory");  // the tile instructions do not tell the compiler what they write
        weigh_rows<bf16, kRows>(count, scores, weights, positions, chunk.first, geometry, maximum, sums, rescale);
        memset(weights + count * kChunk, 0, (kRows - count) * kChunk * sizeof(bf16));
        if (chunk.num_keys < kChunk) {
            alignas(64) bf16 written[kChunk * kMaxHeadDim];
            copy_written(chunk, geometry.head_dim, written);
            add_values(written, weights, count, geometry.head_dim, rescale, values);
        } else {
            add_values(chunk.values, weights, count, geometry.head_dim, rescale, values);
        }
    }

private:
    // scores[row][key] = query · key
    static void score_keys(const bf16* keys, const bf16* query, const ChunkGeometry& geometry, float* scores) {
        int64_t query_stride = geometry.head_dim * int64_t(sizeof(bf16)), key_stride = geometry.block_size * 4;
        asm volatile("" ::: "memory");  // the tile instructions do not tell the compiler what they read
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t d = 0; d < geometry.head_dim; d += 32) {
            const bf16* pairs = keys + d * geometry.block_size;
            _tile_loadd(2, query + d, query_stride);
            _tile_loadd(3, pairs, key_stride);
            _tile_dpbf16ps(0, 2, 3);
            _tile_loadd(4, pairs + 32, key_stride);
            _tile_dpbf16ps(1, 2, 4);
        }
        _tile_stored(0, scores, kChunk * 4);
        _tile_stored(1, scores + 16, kChunk * 4);
    }

    // Values with zeros for keys that have not been written: their weight is 0, but 0 times NaN is NaN.
    static void copy_written(const Chunk<bf16>& chunk, int64_t head_dim, bf16* target) {
        int64_t num_pairs = chunk.num_keys / 2;
        memcpy(target, chunk.values, num_pairs * 2 * head_dim * sizeof(bf16));
        memset(target + num_pairs * 2 * head_dim, 0, (kChunk - num_pairs * 2) * head_dim * sizeof(bf16));
        if (chunk.num_keys % 2)
            for (int64_t i = num_pairs * 2 * head_dim; i < (num_pairs + 1) * 2 * head_dim; i += 2)
                target[i] = chunk.values[i];
    }

    // output = output * rescale + weights · values
    static void add_values(const bf16* values, const bf16* weights, int count, int64_t head_dim, const float* rescale,
                           float* output) {
        alignas(64) float products[kRows * kMaxHeadDim];
        asm volatile("" ::: "memory");
        _tile_loadd(2, weights, kChunk * int64_t(sizeof(bf16)));
        for (int64_t d = 0; d < head_dim; d += 32) {
            _tile_zero(0);
            _tile_loadd(3, values + d * 2, head_dim * 4);
            _tile_dpbf16ps(0, 2, 3);
            _tile_zero(1);
            _tile_loadd(4, values + d * 2 + 32, head_dim * 4);
            _tile_dpbf16ps(1, 2, 4);
            _tile_stored(0, products + d, head_dim * 4);
            _tile_stored(1, products + d + 16, head_dim * 4);
        }
        for (int row = 0; row < count; ++row) {
            Vec factor = splat(rescale[row]);
            for (int64_t i = row * head_dim; i < (row + 1) * head_dim; i += kLanes)
                store(output + i, fma(load(output + i), factor, load(products + i)));
        }
    }
};

template <>
struct RowsOf<bf16> {
    using type = TileRows;
};

}  // namespace

#endif
