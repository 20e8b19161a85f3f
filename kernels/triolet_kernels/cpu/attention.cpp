// Causal attention over a paged cache for a ragged batch: prefill and decode rows in one call.
//
// The keys of a sequence are cut into spans at fixed positions. Each span is summed on its own and the spans are
// merged in order, whether one thread walks over all of them or several share them: a row's result has the same
// bits alone, in any batch, however its prompt was chunked and with any number of threads.

#include "attention_chunk.h"
#include "attention_tiles.h"
#include "cache_reader.h"
#include "parallel.h"
#include "scratch.h"

namespace {

constexpr int64_t kUnitsPerThread = 4;  // a tile that is more than such a share of the work is shared out by spans

TRIOLET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TRIOLET_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Some tokens of one sequence, the keys that any of them sees, and the tile's place among those that are shared out
// by spans; -1 if it is not.
struct TokenTile {
    int32_t sequence, first_token, num_tokens, shared_index;
    int64_t first_key, end_key;

    int64_t first_span() const { return first_key / kSpan; }
    int64_t end_span() const { return divide_up(end_key, kSpan); }
    int64_t num_spans() const { return end_span() - first_span(); }
};

// Query heads that share keys and values, in groups that fit a tile.
struct HeadGroups {
    int64_t num_heads, heads_per_kv, heads_per_group, groups_per_kv, count;

    HeadGroups(int64_t num_heads, int64_t num_kv_heads, int64_t most)
        : num_heads(num_heads),
          heads_per_kv(num_heads / num_kv_heads),
          heads_per_group(smaller(heads_per_kv, most)),
          groups_per_kv(divide_up(heads_per_kv, most)),
          count(num_kv_heads * groups_per_kv) {}

    int64_t kv_head(int64_t group) const { return groups_per_kv == 1 ? group : group / groups_per_kv; }
    int64_t place(int64_t group) const { return (group - kv_head(group) * groups_per_kv) * heads_per_group; }
    int64_t first_head(int64_t group) const { return kv_head(group) * heads_per_kv + place(group); }
    int64_t num_heads_of(int64_t group) const { return smaller(heads_per_group, heads_per_kv - place(group)); }
};

// Of queries of T over a cache of E.
template <class T, class E>
struct Inputs {
    const T* query;
    const E* key_cache;
    const E* value_cache;
    T* output;
    const int64_t* positions;
    const int32_t* block_tables;
    const int32_t* query_starts;
    int64_t num_tokens, num_sequences, table_stride, max_length, num_heads, num_kv_heads;
    ChunkGeometry geometry;
};

template <class T, class E>
struct Attention : Inputs<T, E> {
    using Rows = typename RowsOf<T>::type;
    static constexpr int kTileRows = Rows::kTileRows, kGroupRows = Rows::kGroupRows;
    using Inputs<T, E>::geometry;
    using Inputs<T, E>::positions;

    const HeadGroups groups;
    const int64_t num_spans;  // of the longest sequence

    explicit Attention(const Inputs<T, E>& inputs)
        : Inputs<T, E>(inputs),
          groups(inputs.num_heads, inputs.num_kv_heads, kTileRows),
          num_spans(divide_up(inputs.max_length, kSpan)) {}

    // Cuts the batch into tiles of tokens; returns their number.
    int64_t cut(TokenTile* tiles) const {
        int64_t count = 0, tile_tokens = kTileRows / groups.heads_per_group;
        for (int32_t s = 0; s < this->num_sequences; ++s) {
            const int32_t end = this->query_starts[s + 1];
            for (int32_t token = this->query_starts[s]; token < end; token += int32_t(tile_tokens)) {
                auto num_tokens = int32_t(smaller(tile_tokens, end - token));
                int64_t left = positions[token] + 1 - geometry.window;  // of what the first token sees
                tiles[count++] = {s,  token, num_tokens, -1, geometry.window && left > 0 ? left : 0,
                                  positions[token + num_tokens - 1] + 1};
            }
        }
        return count;
    }

    int64_t num_rows_of(const TokenTile& tile) const { return tile.num_tokens * groups.heads_per_group; }

    // Numbers the tiles that would keep one thread busy while the others have nothing left, whose spans are shared out,
    // and lists them; returns how many.
    int64_t find_shared(TokenTile* tiles, int64_t num_tiles, int64_t num_threads, TokenTile* shared) const {
        int64_t total = 0, count = 0;
        for (int64_t i = 0; i < num_tiles; ++i) total += tiles[i].num_spans();
        for (TokenTile* tile = tiles; tile < tiles + num_tiles && num_threads > 1; ++tile) {
            int64_t num_spans = tile->num_spans();
            if (num_spans == 1 || num_spans * num_threads * kUnitsPerThread <= total * groups.count) continue;
            tile->shared_index = int32_t(count);
            shared[count++] = *tile;
        }
        return count;
    }

    // Of the sums of so many rows.
    int64_t state_size(int64_t num_rows) const { return 2 * padded(num_rows) + num_rows * geometry.head_dim; }
    static int64_t padded(int64_t num_rows) { return divide_up(num_rows, kLanes) * kLanes; }
    RowStates states_in(float* memory, int64_t num_rows) const {
        return {memory, memory + padded(num_rows), memory + 2 * padded(num_rows)};
    }

    Chunk<E> chunk_at(const TokenTile& tile, int64_t kv_head, int64_t first) const {
        const int64_t block_size = geometry.block_size, offset = first & (block_size - 1);
        int64_t block = this->block_tables[tile.sequence * this->table_stride + (first >> __builtin_ctzll(block_size))];
        int64_t page = (block * this->num_kv_heads + kv_head) * page_size<E>(block_size, geometry.head_dim);
        return CacheReader<T, E>::find(this->key_cache + page, this->value_cache + page, offset, geometry, first,
                                       int(smaller(geometry.chunk, tile.end_key - first)));
    }

    void find_chunks(const TokenTile& tile, int64_t group, int64_t span, Chunks<E>& chunks) const {
        chunks.count = 0;
        const int64_t kv_head = groups.kv_head(group), end = smaller((span + 1) * kSpan, tile.end_key);
        for (int64_t first = span * kSpan; first < end; first += geometry.chunk)
            if (first + geometry.chunk > tile.first_key)
                chunks.chunk[chunks.count++] = chunk_at(tile, kv_head, first);
    }

    // total = total and part together; exact where either is empty.
    void merge(const RowStates& total, const RowStates& part, int num_rows) const {
        alignas(64) float before[kGroupRows], after[kGroupRows];
        for (int row = 0; row < num_rows; row += kLanes) {
            Vec was = load(total.maximum + row), other = load(part.maximum + row), largest = max(was, other);
            Vec first = weight_of(sub(was, largest)), second = weight_of(sub(other, largest));
            store(before + row, first);
            store(after + row, second);
            store(total.maximum + row, largest);
            store(total.sum + row, add(mul(load(total.sum + row), first), mul(load(part.sum + row), second)));
        }
        for (int row = 0; row < num_rows; ++row) {
            float* values = total.values + row * geometry.head_dim;
            const float* more = part.values + row * geometry.head_dim;
            Vec first = splat(before[row]), second = splat(after[row]);
            for (int64_t d = 0; d < geometry.head_dim; d += kLanes)
                store(values + d, add(mul(load(values + d), first), mul(load(more + d), second)));
        }
    }

    void finish(const RowStates& total, const TokenTile& tile, int64_t group) const {
        const int64_t head_dim = geometry.head_dim, num_heads = groups.num_heads_of(group);
        int row = 0;
        for (int64_t token = tile.first_token; token < tile.first_token + tile.num_tokens; ++token) {
            T* target = this->output + (token * groups.num_heads + groups.first_head(group)) * head_dim;
            for (int64_t head = 0; head < num_heads; ++head, ++row, target += head_dim) {
                Vec factor = splat(1 / total.sum[row]);
                for (int64_t d = 0; d < head_dim; d += kLanes)
                    store(target + d, mul(load(total.values + row * head_dim + d), factor));
            }
        }
    }
};

// The rows that one thread carries through the keys together, and what it needs for that.
template <class T, class E>
class Worker {
public:
    explicit Worker(const Attention<T, E>& attention)
        : attention_(attention), reader_(attention.geometry), fetching_(attention.geometry) {}

    // One tile and group of heads over all its keys. Units are numbered tile by tile and group by group.
    void run_tile(const TokenTile* tiles, int64_t num_units, int64_t unit) {
        const int64_t count = attention_.groups.count, group = unit % count;
        const TokenTile& tile = tiles[unit / count];
        alignas(64) float total_memory[kTileRows * (kMaxHeadDim + 2)], part_memory[kGroupRows * (kMaxHeadDim + 2)];
        RowStates total = attention_.states_in(total_memory, kTileRows);
        RowStates part = attention_.states_in(part_memory, kGroupRows);
        gather(tile, group);
        total.clear(num_rows_, attention_.geometry.head_dim);
        if (unit != next_unit_) find_first_chunks(tiles, unit);
        for (int64_t span = tile.first_span(); span < tile.end_span(); ++span) {
            chunks_ = next_;
            if (span + 1 < tile.end_span())
                attention_.find_chunks(tile, group, span + 1, next_);
            else if (unit + 1 < num_units)
                find_first_chunks(tiles, unit + 1);
            else
                next_.count = 0;
            const Chunks<T>& chunks = read();
            for (int row = 0; row < num_rows_; row += kGroupRows) {
                attend(row, chunks, part);
                attention_.merge(total.from(row, attention_.geometry.head_dim), part, num_group_rows(row));
            }
        }
        attention_.finish(total, tile, group);
    }

    // One span of one tile and group of heads into its place in `parts`. Units are numbered tile by tile, span by
    // span and group by group.
    void run_span(const TokenTile* shared, int64_t num_units, int64_t unit, float* parts) {
        const TokenTile& tile = shared[unit / attention_.groups.count / attention_.num_spans];
        if (unit != next_unit_) find_chunks(shared, unit);
        chunks_ = next_;
        next_.count = 0;
        if (unit + 1 < num_units) find_chunks(shared, unit + 1);
        if (chunks_.count == 0) return;
        gather(tile, unit % attention_.groups.count);
        const Chunks<T>& chunks = read();
        RowStates sums = attention_.states_in(parts, num_rows_);
        for (int row = 0; row < num_rows_; row += kGroupRows)
            attend(row, chunks, sums.from(row, attention_.geometry.head_dim));
    }

    // Puts together what was summed of one tile and group of heads, `size` values from span to span.
    void join_spans(const TokenTile& tile, int64_t group, float* parts, int64_t size) {
        alignas(64) float total_memory[kTileRows * (kMaxHeadDim + 2)];
        const int64_t head_dim = attention_.geometry.head_dim;
        RowStates total = attention_.states_in(total_memory, kTileRows);
        num_rows_ = int(tile.num_tokens * attention_.groups.num_heads_of(group));
        total.clear(num_rows_, head_dim);
        for (int64_t span = tile.first_span(); span < tile.end_span(); ++span) {
            RowStates part = attention_.states_in(parts + span * size, num_rows_);
            for (int row = 0; row < num_rows_; row += kGroupRows)
                attention_.merge(total.from(row, head_dim), part.from(row, head_dim), num_group_rows(row));
        }
        attention_.finish(total, tile, group);
    }

private:
    using Rows = typename RowsOf<T>::type;
    static constexpr int kTileRows = Rows::kTileRows, kGroupRows = Rows::kGroupRows;

    int num_group_rows(int row) const { return int(smaller(kGroupRows, num_rows_ - row)); }

    // Gathers the queries of a tile.
    void gather(const TokenTile& tile, int64_t group) {
        const int64_t head_dim = attention_.geometry.head_dim, num_heads = attention_.groups.num_heads_of(group);
        num_rows_ = int(tile.num_tokens * num_heads);
        int row = 0;
        for (int64_t token = tile.first_token; token < tile.first_token + tile.num_tokens; ++token) {
            int64_t first_head = token * attention_.num_heads + attention_.groups.first_head(group);
            const T* source = attention_.query + first_head * head_dim;
            for (int64_t head = 0; head < num_heads; ++head, ++row, source += head_dim) {
                positions_[row] = attention_.positions[token];
                const int first = row / kGroupRows * kGroupRows;
                Rows::put_query(source, row - first, num_group_rows(first), head_dim, query_ + first * head_dim);
            }
        }
    }

    // Those of the first span of a tile and group of heads; none where spans are shared out.
    void find_first_chunks(const TokenTile* tiles, int64_t unit) {
        const TokenTile& tile = tiles[unit / attention_.groups.count];
        next_.count = 0;
        if (tile.shared_index < 0)
            attention_.find_chunks(tile, unit % attention_.groups.count, tile.first_span(), next_);
        next_unit_ = unit;
    }

    void find_chunks(const TokenTile* shared, int64_t unit) {
        const int64_t count = attention_.groups.count, span = unit / count;
        attention_.find_chunks(shared[span / attention_.num_spans], unit % count, span % attention_.num_spans, next_);
        next_unit_ = unit;
    }

    // The chunks. The next ones are fetched on the way, here and beside the rows that go through these first.
    const Chunks<T>& read() {
        const int64_t count = chunks_.count, head_dim = attention_.geometry.head_dim;
        fetching_.start(next_, count * reader_.kPieces + Rows::num_pieces(count, num_group_rows(0), head_dim));
        return reader_.read(chunks_, fetching_);
    }

    // Sums of one group of rows over the chunks.
    void attend(int row, const Chunks<T>& chunks, const RowStates& sums) {
        Rows::attend(session_, num_group_rows(row), chunks, fetching_,
                     query_ + row * attention_.geometry.head_dim, positions_ + row, reader_.geometry, sums);
    }

    const Attention<T, E>& attention_;
    CacheReader<T, E> reader_;
    Fetching<T, E> fetching_;
    typename Rows::Session session_;
    Chunks<E> chunks_, next_;
    int64_t next_unit_ = -1;  // that the next chunks are of
    int num_rows_ = 0;
    int64_t positions_[kTileRows];
    alignas(64) T query_[kTileRows * kMaxHeadDim];  // of each group of rows as Rows::put_query has it
};

// False if there is no memory to work in.
template <class T, class E>
bool run(const Inputs<T, E>& inputs, RunTeam run_team, int64_t num_threads) {
    const Attention<T, E> attention(inputs);
    Scratch<TokenTile> tiles(inputs.num_tokens), shared(inputs.num_tokens);
    if (!tiles || !shared) return false;
    const int64_t num_tiles = attention.cut(tiles.values), num_groups = attention.groups.count;
    const int64_t num_shared = attention.find_shared(tiles.values, num_tiles, num_threads, shared.values);
    const int64_t num_units = num_shared * attention.num_spans * num_groups;
    int64_t most_rows = 0;
    for (int64_t i = 0; i < num_shared; ++i)
        if (attention.num_rows_of(shared.values[i]) > most_rows) most_rows = attention.num_rows_of(shared.values[i]);
    const int64_t size = attention.state_size(most_rows);
    Scratch<float> parts(num_units * size);
    if (!parts) return false;
    // By tile, group and span.
    auto parts_of = [&](int64_t tile, int64_t group) {
        return parts.values + (tile * num_groups + group) * attention.num_spans * size;
    };
    share_units(run_team, num_threads, num_units, [&] {
        return [&, worker = Worker<T, E>(attention)](int64_t unit) mutable {
            int64_t group = unit % num_groups, span = unit / num_groups % attention.num_spans;
            float* part = parts_of(unit / num_groups / attention.num_spans, group) + span * size;
            worker.run_span(shared.values, num_units, unit, part);
        };
    });
    share_units(run_team, num_threads, num_tiles * num_groups, [&] {
        return [&, worker = Worker<T, E>(attention)](int64_t unit) mutable {
            const TokenTile& tile = tiles.values[unit / num_groups];
            int64_t group = unit % num_groups;
            if (tile.shared_index < 0)
                worker.run_tile(tiles.values, num_tiles * num_groups, unit);
            else
                worker.join_spans(tile, group, parts_of(tile.shared_index, group), size);
        };
    });
    return true;
}

}  // namespace

// query (num_tokens, num_heads, head_dim) → output of the same shape. Caches (blocks, num_kv_heads, block_size,
// head_dim), laid out as cache_layout.h says. head_dim is at most 256; head_dim and block_size are multiples of the
// number of lanes, block_size is a power of two. window 0 is none. Caches of codes have their scales in addition.
#define TRIOLET_ATTENTION(name, T, E)                                                                                 \
    TRIOLET_EXPORT(name)                                                                                           \
    (const T* query, const E* key_cache, const E* value_cache, T* output, const int64_t* positions,                \
     const int32_t* block_tables, const int32_t* query_starts, int64_t num_tokens, int64_t num_sequences,          \
     int64_t table_stride, int64_t max_length, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,          \
     int64_t block_size, float scale, int64_t window, RunTeam run_team, int64_t num_threads) {                     \
        int chunk = int(smaller(kChunk, block_size));                                                              \
        return run<T, E>({query, key_cache, value_cache, output, positions, block_tables, query_starts, num_tokens,   \
                       num_sequences, table_stride, max_length, num_heads, num_kv_heads,                           \
                       {head_dim, block_size, chunk, scale * 1.4426950408889634f, window}},                        \
                      run_team, num_threads);                                                                      \
    }

TRIOLET_ATTENTION(paged_attention_float32, float, float)
TRIOLET_ATTENTION(paged_attention_bfloat16, bf16, bf16)
TRIOLET_ATTENTION(paged_attention_of_codes_float32, float, Code)
TRIOLET_ATTENTION(paged_attention_of_codes_bfloat16, bf16, Code)
