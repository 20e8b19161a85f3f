// Causal attention over a paged cache for a ragged batch: prefill and decode rows in one call.
//
// The keys of a sequence are cut into spans at fixed positions. Each span is summed on its own and the spans are
// merged in order, whether one thread walks over all of them or several share them: a row's result has the same
// bits alone, in any batch, however its prompt was chunked and with any number of threads.

#include "attention_chunk.h"
#include "attention_tiles.h"
#include "parallel.h"
#include "scratch.h"

namespace {

constexpr int64_t kSpan = 128;
constexpr int kTileRows = 32;
constexpr int64_t kUnitsPerThread = 4;  // a tile that is more than such a share of the work is shared out by spans

// Some tokens of one sequence, and the tile's place among those that are shared out by spans; -1 if it is not.
struct TokenTile {
    int32_t sequence, first_token, num_tokens, shared_index;
};

// The rows that one thread carries through the keys together.
template <class T>
struct RowTile {
    int num_rows;
    int64_t first_key, end_key;  // what any of the rows sees
    int64_t positions[kTileRows];
    alignas(64) T query[kTileRows * kMaxHeadDim];  // in groups of rows that go through a chunk together
};

TRIOLET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TRIOLET_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
struct Attention {
    using Rows = typename RowsOf<T>::type;

    const T* query;
    const T* key_cache;
    const T* value_cache;
    T* output;
    const int64_t* positions;
    const int32_t* block_tables;
    const int32_t* query_starts;
    int64_t num_sequences, table_stride, num_heads, num_kv_heads;
    ChunkGeometry geometry;

    int64_t heads_per_kv() const { return num_heads / num_kv_heads; }
    int64_t tile_heads() const { return smaller(heads_per_kv(), kTileRows); }
    int64_t tiles_per_kv() const { return divide_up(heads_per_kv(), kTileRows); }
    int64_t num_groups() const { return num_kv_heads * tiles_per_kv(); }
    int64_t tile_tokens() const { return kTileRows / tile_heads(); }
    int64_t state_size() const { return kTileRows * (geometry.head_dim + 2); }

    int64_t first_head(int64_t group) const {
        return group / tiles_per_kv() * heads_per_kv() + group % tiles_per_kv() * kTileRows;
    }
    int64_t num_group_heads(int64_t group) const {
        return smaller(kTileRows, heads_per_kv() - group % tiles_per_kv() * kTileRows);
    }

    // Cuts the batch into tiles of tokens; returns their number.
    int64_t cut(TokenTile* tiles) const {
        int64_t count = 0;
        for (int32_t s = 0; s < num_sequences; ++s)
            for (int32_t token = query_starts[s]; token < query_starts[s + 1]; token += int32_t(tile_tokens()))
                tiles[count++] = {s, token, int32_t(smaller(tile_tokens(), query_starts[s + 1] - token)), -1};
        return count;
    }

    // Spans that hold keys which a tile sees.
    int64_t num_spans_of(const TokenTile& tile) const {
        int64_t first = positions[tile.first_token], last = positions[tile.first_token + tile.num_tokens - 1];
        int64_t first_key = geometry.window && first + 1 > geometry.window ? first + 1 - geometry.window : 0;
        return last / kSpan - first_key / kSpan + 1;
    }

    // Numbers the tiles that would keep one thread busy while the others have nothing left; returns how many.
    int64_t find_shared(TokenTile* tiles, int64_t num_tiles, int64_t num_threads) const {
        int64_t total = 0, count = 0;
        for (int64_t i = 0; i < num_tiles; ++i) total += num_spans_of(tiles[i]);
        for (int64_t i = 0; i < num_tiles && num_threads > 1; ++i) {
            int64_t num_spans = num_spans_of(tiles[i]);
            if (num_spans > 1 && num_spans * num_threads * kUnitsPerThread > total * num_groups())
                tiles[i].shared_index = int32_t(count++);
        }
        return count;
    }

    RowStates states_in(float* memory) const {
        return {memory, memory + kTileRows, memory + 2 * kTileRows};
    }

    void start(const RowStates& states, int num_rows) const {
        for (int row = 0; row < num_rows; ++row) states.maximum[row] = kNoMaximum, states.sum[row] = 0;
        memset(states.values, 0, sizeof(float) * num_rows * geometry.head_dim);
    }

    void set_positions(RowTile<T>& rows, const TokenTile& tile, int64_t group) const {
        int64_t heads = num_group_heads(group);
        int64_t lowest = positions[tile.first_token], highest = lowest;
        rows.num_rows = int(tile.num_tokens * heads);
        for (int row = 0; row < rows.num_rows; ++row) {
            int64_t position = positions[tile.first_token + row / heads];
            rows.positions[row] = position;
            lowest = smaller(lowest, position);
            highest = position > highest ? position : highest;
        }
        rows.end_key = highest + 1;
        rows.first_key = geometry.window && lowest + 1 > geometry.window ? lowest + 1 - geometry.window : 0;
    }

    // Gathers the queries of a tile.
    void gather(RowTile<T>& rows, const TokenTile& tile, int64_t group) const {
        set_positions(rows, tile, group);
        int64_t heads = num_group_heads(group), head_dim = geometry.head_dim;
        for (int first = 0; first < rows.num_rows; first += Rows::kRows) {
            int64_t count = smaller(Rows::kRows, rows.num_rows - first);
            T* target = rows.query + first * head_dim;
            for (int64_t row = 0; row < count; ++row) {
                int64_t token = tile.first_token + (first + row) / heads;
                int64_t head = first_head(group) + (first + row) % heads;
                const T* source = query + (token * num_heads + head) * head_dim;
                Rows::put_query(source, row, count, head_dim, target);
            }
        }
    }

    Chunk<T> chunk_at(const RowTile<T>& rows, const TokenTile& tile, int64_t group, int64_t first) const {
        int64_t block_size = geometry.block_size, head_dim = geometry.head_dim;
        int64_t block = block_tables[tile.sequence * table_stride + first / block_size];
        int64_t page = (block * num_kv_heads + group / tiles_per_kv()) * block_size * head_dim;
        int64_t offset = first % block_size;
        return {key_cache + page + key_index<T>(offset, 0, block_size),
                value_cache + page + value_index<T>(offset, 0, head_dim), first,
                int(smaller(geometry.chunk, rows.end_key - first))};
    }

    // Starts the way of a chunk's keys and values from memory: blocks are too short for the hardware to guess.
    // Always inlined: GCC 12 takes a function that only prefetches for one without effect, and drops the call.
    TRIOLET_INLINE void prefetch(const Chunk<T>& chunk) const {
        constexpr int64_t kLine = 64 / sizeof(T), P = PairSize<T>::value;
        int64_t run = geometry.chunk * P, size = geometry.chunk * geometry.head_dim;
        for (int64_t pair = 0; pair < geometry.head_dim / P; ++pair)
            for (int64_t i = 0; i < run; i += kLine)
                __builtin_prefetch(chunk.keys + pair * geometry.block_size * P + i);
        for (int64_t i = 0; i < size; i += kLine) __builtin_prefetch(chunk.values + i);
    }

    // Sums over the keys of one span.
    void walk_span(const RowTile<T>& rows, const TokenTile& tile, int64_t group, int64_t span,
                   const RowStates& states) const {
        alignas(64) float sums[kTileRows * kLanes] = {};
        start(states, rows.num_rows);
        int64_t end = smaller((span + 1) * kSpan, rows.end_key);
        for (int64_t first = span * kSpan; first < end; first += geometry.chunk) {
            if (first + geometry.chunk <= rows.first_key) continue;
            Chunk<T> chunk = chunk_at(rows, tile, group, first);
            int64_t next = first + geometry.chunk;
            if (next < rows.end_key) prefetch(chunk_at(rows, tile, group, next));
            for (int row = 0; row < rows.num_rows; row += Rows::kRows) {
                int count = int(smaller(Rows::kRows, rows.num_rows - row));
                Rows::attend(count, chunk, rows.query + row * geometry.head_dim, rows.positions + row, geometry,
                             states.maximum + row, sums + row * kLanes, states.values + row * geometry.head_dim);
            }
        }
        for (int row = 0; row < rows.num_rows; ++row) states.sum[row] = sum_lanes(load(sums + row * kLanes));
    }

    // total = total and part together; exact where either is empty.
    void merge(const RowStates& total, const RowStates& part, int num_rows) const {
        for (int row = 0; row < num_rows; ++row) {
            float largest = total.maximum[row] > part.maximum[row] ? total.maximum[row] : part.maximum[row];
            float before = weight_of(total.maximum[row] - largest), after = weight_of(part.maximum[row] - largest);
            float* values = total.values + row * geometry.head_dim;
            const float* more = part.values + row * geometry.head_dim;
            for (int64_t d = 0; d < geometry.head_dim; d += kLanes)
                store(values + d, add(mul(load(values + d), splat(before)), mul(load(more + d), splat(after))));
            total.sum[row] = total.sum[row] * before + part.sum[row] * after;
            total.maximum[row] = largest;
        }
    }

    void finish(const RowStates& total, const TokenTile& tile, int64_t group, int num_rows) const {
        int64_t heads = num_group_heads(group), head_dim = geometry.head_dim;
        for (int row = 0; row < num_rows; ++row) {
            int64_t index = (tile.first_token + row / heads) * num_heads + first_head(group) + row % heads;
            Vec factor = splat(1 / total.sum[row]);
            for (int64_t d = 0; d < head_dim; d += kLanes)
                store(output + index * head_dim + d, mul(load(total.values + row * head_dim + d), factor));
        }
    }

    // One tile and group of heads over all its keys. Spans summed elsewhere are found in `parts`, if given.
    void run_tile(const TokenTile& tile, int64_t group, float* parts) const {
        RowTile<T> rows;
        alignas(64) float total_memory[kTileRows * (kMaxHeadDim + 2)];
        alignas(64) float part_memory[kTileRows * (kMaxHeadDim + 2)];
        typename Rows::Session session;
        RowStates total = states_in(total_memory);
        if (parts)
            set_positions(rows, tile, group);
        else
            gather(rows, tile, group);
        start(total, rows.num_rows);
        for (int64_t span = rows.first_key / kSpan; span * kSpan < rows.end_key; ++span) {
            RowStates part = states_in(parts ? parts + span * state_size() : part_memory);
            if (!parts) walk_span(rows, tile, group, span, part);
            merge(total, part, rows.num_rows);
        }
        finish(total, tile, group, rows.num_rows);
    }

    // One span of one tile and group of heads.
    void run_span(const TokenTile& tile, int64_t group, int64_t span, float* parts) const {
        RowTile<T> rows;
        typename Rows::Session session;
        set_positions(rows, tile, group);
        if (span < rows.first_key / kSpan || span * kSpan >= rows.end_key) return;
        gather(rows, tile, group);
        walk_span(rows, tile, group, span, states_in(parts + span * state_size()));
    }

    // False if there is no memory to work in.
    bool run(int64_t num_tokens, int64_t max_length, RunTeam run_team, int64_t num_threads) const {
        Scratch<TokenTile> tiles(num_tokens);
        if (!tiles) return false;
        int64_t num_tiles = cut(tiles.values), num_spans = divide_up(max_length, kSpan);
        int64_t num_shared = find_shared(tiles.values, num_tiles, num_threads);
        Scratch<TokenTile> shared(num_shared);
        Scratch<float> parts(num_shared * num_groups() * num_spans * state_size());
        if (!shared || !parts) return false;
        auto parts_of = [&](const TokenTile& tile, int64_t group) {
            return parts.values + (tile.shared_index * num_groups() + group) * num_spans * state_size();
        };
        for (int64_t i = 0; i < num_tiles; ++i)
            if (tiles.values[i].shared_index >= 0) shared.values[tiles.values[i].shared_index] = tiles.values[i];
        for_each_unit(run_team, num_threads, num_shared * num_groups() * num_spans, [&](int64_t index) {
            int64_t unit = index / num_spans, group = unit % num_groups();
            const TokenTile& tile = shared.values[unit / num_groups()];
            run_span(tile, group, index % num_spans, parts_of(tile, group));
        });
        for_each_unit(run_team, num_threads, num_tiles * num_groups(), [&](int64_t unit) {
            const TokenTile& tile = tiles.values[unit / num_groups()];
            int64_t group = unit % num_groups();
            run_tile(tile, group, tile.shared_index >= 0 ? parts_of(tile, group) : nullptr);
        });
        return true;
    }
};

}  // namespace

// query (num_tokens, num_heads, head_dim) → output of the same shape. Caches (blocks, num_kv_heads, block_size,
// head_dim), laid out as cache_layout.h says. head_dim is at most 256; head_dim and block_size are multiples of the
// number of lanes, block_size is a power of two. window 0 is none.
#define TRIOLET_ATTENTION(name, T)                                                                                 \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* query, const T* key_cache, const T* value_cache, T* output, const int64_t* positions,                \
     const int32_t* block_tables, const int32_t* query_starts, int64_t num_tokens, int64_t num_sequences,          \
     int64_t table_stride, int64_t max_length, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,          \
     int64_t block_size, float scale, int64_t window, RunTeam run_team, int64_t num_threads) {                     \
        int chunk = int(smaller(kChunk, block_size));                                                              \
        Attention<T> attention = {query,         key_cache,    value_cache,   output,       positions,             \
                                  block_tables,  query_starts, num_sequences, table_stride, num_heads,             \
                                  num_kv_heads,  {head_dim, block_size, chunk, scale * 1.4426950408889634f, window}}; \
        return attention.run(num_tokens, max_length, run_team, num_threads);                                       \
    }

TRIOLET_ATTENTION(paged_attention_float32, float)
TRIOLET_ATTENTION(paged_attention_bfloat16, bf16)
