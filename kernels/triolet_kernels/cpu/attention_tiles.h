// The same softmax on matrix tiles (AMX-BF16): up to 32 rows of queries against all that they see of a span.
//
// Blocks of the cache are laid out as the tiles take them. As in vectors, what happens to a row depends on nothing
// but itself and the keys: each row of a tile is summed on its own, in one order. A span is short enough for its
// scores to stay in the nearest cache, so that there is one maximum to a row and nothing is put in a new scale.
#pragma once

#include "attention_chunk.h"
#include "tile_session.h"

#if defined(__AMX_BF16__)

namespace {

// Needs head_dim and the keys of a block to be multiples of 32.
struct TileRows {
    static constexpr int kTileRows = 96;   // that one thread carries through the keys: each reads them all
    static constexpr int kGroupRows = 32;  // of them, that go through a span together

    using Session = TileSession;

    static void put_query(const bf16* source, int row, int, int64_t head_dim, bf16* query) {
        memcpy(query + row * head_dim, source, head_dim * sizeof(bf16));
    }

    // Pieces of work beside which to fetch: each tile of keys or values, and a few for the softmax of a row.
    static int64_t num_pieces(int64_t num_chunks, int64_t num_rows, int64_t head_dim) {
        return num_chunks * head_dim / 8 + num_rows * kPiecesOfRow;
    }

    // Sums of a group of rows over a span. What comes next is fetched on the way.
    template <class Fetching>
    static void attend(Session& session, int num_rows, const Chunks<bf16>& chunks, Fetching& fetching,
                       const bf16* query, const int64_t* positions, const ChunkGeometry& geometry,
                       const RowStates& states) {
        alignas(64) float scores[kGroupRows * kSpan];
        int count = chunks.up_to(positions[num_rows - 1]);
        if (count == 0) return states.clear(num_rows, geometry.head_dim);
        const bool has_second = session.use(num_rows) > kTile;
        (has_second ? score_keys<true, Fetching> : score_keys<false, Fetching>)(chunks, count, fetching, query, geometry,
                                                                                scores);
        for (int row = 0; row < num_rows; ++row) {
            fetching.beside(kPiecesOfRow);
            weigh_row(scores + row * kSpan, count, positions[row] + 1 - chunks.chunk[0].first,
                      geometry, states.maximum[row], states.sum[row]);
        }
        const Chunk<bf16>& last = chunks.chunk[count - 1];
        alignas(64) bf16 written[kChunk * kMaxHeadDim];
        if (last.num_keys < kChunk) copy_written(last, geometry.head_dim, written);
        const bf16* last_values = last.num_keys < kChunk ? written : last.values;
        (has_second ? add_values<true, Fetching> : add_values<false, Fetching>)(chunks, count, fetching, last_values,
                                                                                scores, geometry, states.values);
    }

private:
    static constexpr int kTile = 16;
    static constexpr int64_t kPiecesOfRow = 2;

    // scores[row][key] = query · key
    template <bool HAS_SECOND, class Fetching>
    static void score_keys(const Chunks<bf16>& chunks, int count, Fetching& fetching, const bf16* query,
                           const ChunkGeometry& geometry, float* scores) {
        const int64_t query_stride = geometry.head_dim * int64_t(sizeof(bf16)), key_stride = geometry.block_size * 4;
        for (int i = 0; i < count; ++i) {
            asm volatile("" ::: "memory");  // tile instructions do not tell the compiler what they read and write
            clear<HAS_SECOND>();
            for (int64_t d = 0; d < geometry.head_dim; d += 32) {
                const bf16* pairs = chunks.chunk[i].keys + d * geometry.block_size;
                _tile_loadd(4, query + d, query_stride);
                if constexpr (HAS_SECOND) _tile_loadd(5, query + kTile * geometry.head_dim + d, query_stride);
                multiply<HAS_SECOND>(pairs, pairs + 32, key_stride, fetching);
            }
            save<HAS_SECOND>(scores + i * kChunk, kSpan);
        }
    }

    // values[row] = weights · values
    template <bool HAS_SECOND, class Fetching>
    static void add_values(const Chunks<bf16>& chunks, int count, Fetching& fetching, const bf16* last_values,
                           const float* scores, const ChunkGeometry& geometry, float* values) {
        const int64_t head_dim = geometry.head_dim, weight_stride = kSpan * int64_t(sizeof(float));
        const bf16* weights = reinterpret_cast<const bf16*>(scores);
        for (int64_t d = 0; d < head_dim; d += 32) {
            asm volatile("" ::: "memory");
            clear<HAS_SECOND>();
            for (int i = 0; i < count; ++i) {
                const bf16* pairs = (i == count - 1 ? last_values : chunks.chunk[i].values) + d * 2;
                _tile_loadd(4, weights + i * kChunk, weight_stride);
                if constexpr (HAS_SECOND) _tile_loadd(5, weights + kTile * kSpan * 2 + i * kChunk, weight_stride);
                multiply<HAS_SECOND>(pairs, pairs + 32, head_dim * 4, fetching);
            }
            save<HAS_SECOND>(values + d, head_dim);
        }
    }

    // Sums are in the tiles 0 and 1, those of rows from the 16th on in 2 and 3; 4 and 5 are what is multiplied. Keys and
    // values pass by the nearest cache, where the scores are to stay.
    template <bool HAS_SECOND>
    static TRIOLET_INLINE void clear() {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (HAS_SECOND) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }

    template <bool HAS_SECOND, class Fetching>
    static TRIOLET_INLINE void multiply(const bf16* left, const bf16* right, int64_t stride, Fetching& fetching) {
        _tile_stream_loadd(6, left, stride);
        fetching.beside();
        _tile_dpbf16ps(0, 4, 6);
        _tile_stream_loadd(7, right, stride);
        fetching.beside();
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (HAS_SECOND) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }

    template <bool HAS_SECOND>
    static TRIOLET_INLINE void save(float* target, int64_t row_size) {
        _tile_stored(0, target, row_size * 4);
        _tile_stored(1, target + kTile, row_size * 4);
        if constexpr (HAS_SECOND) {
            _tile_stored(2, target + kTile * row_size, row_size * 4);
            _tile_stored(3, target + kTile * row_size + kTile, row_size * 4);
        }
        asm volatile("" ::: "memory");
    }

    // Softmax of one row, which sees keys before `end`, counted from the first chunk's first. Weights take the place of
    // the scores, from the row's first byte on.
    static TRIOLET_INLINE void weigh_row(float* scores, int count, int64_t end,
                                         const ChunkGeometry& geometry, float& maximum, float& sum) {
        const int size = count * kChunk;
        const int64_t first = geometry.window ? end - geometry.window : 0;
        if (first <= 0 && end >= size)
            weigh_row<false>(scores, size, 0, size, geometry.scale, maximum, sum);
        else
            weigh_row<true>(scores, size, int(first < 0 ? 0 : first), int(end < size ? end : size),
                            geometry.scale, maximum, sum);
    }

    template <bool IS_MASKED>
    static TRIOLET_INLINE void weigh_row(float* scores, int size, int first, int end, float scale,
                                         float& maximum, float& sum) {
        Vec largest = splat(kMasked);
        for (int i = 0; i < size; i += kChunk) {
            Vec low = load(scores + i), high = load(scores + i + kLanes);
            if constexpr (IS_MASKED) {
                low = keep_seen(low, first - i, end - i, kMasked);
                high = keep_seen(high, first - i - kLanes, end - i - kLanes, kMasked);
            }
            largest = max(largest, max(low, high));
        }
        float now = max_lanes(largest) * scale;
        maximum = now > kNoMaximum ? now : kNoMaximum;
        bf16* weights = reinterpret_cast<bf16*>(scores);
        Vec factor = splat(scale), negative = splat(-maximum), total = splat(0);
        for (int i = 0; i < size; i += kChunk) {
            Vec low = exp2_of_negative(fma(load(scores + i), factor, negative));
            Vec high = exp2_of_negative(fma(load(scores + i + kLanes), factor, negative));
            if constexpr (IS_MASKED) {
                low = keep_seen(low, first - i, end - i, 0);
                high = keep_seen(high, first - i - kLanes, end - i - kLanes, 0);
            }
            _mm512_store_si512(weights + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            total = add(total, add(low, high));
        }
        sum = sum_lanes(total);
    }

    static TRIOLET_INLINE Vec keep_seen(Vec value, int first, int end, float other) {
        int low = first < 0 ? 0 : first > kLanes ? kLanes : first, high = end < 0 ? 0 : end > kLanes ? kLanes : end;
        return keep_lanes(value, low, high, other);
    }

    // 2^x, for x that is not above 0 but by rounding; exactly 1 at 0, and 0 where that is the nearest number. Relative
    // error below 4e-6, where a weight is rounded by up to 2e-3.
    static TRIOLET_INLINE Vec exp2_of_negative(Vec x) {
        Vec f = _mm512_reduce_ps(x, 0x09);  // x less the next integer below
        Vec sum = splat(1.3426742e-2f);
        sum = fma(sum, f, splat(5.2242383e-2f));
        sum = fma(sum, f, splat(2.4128024e-1f));
        sum = fma(sum, f, splat(6.9304484e-1f));
        sum = fma(sum, f, splat(1.0f));
        return _mm512_scalef_ps(sum, x);
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
};

template <>
struct RowsOf<bf16> {
    using type = TileRows;
};

}  // namespace

#endif
