// Linear layers with weights kept quantised, on matrix tiles (AMX-BF16): inputs stay bf16, weights become it on the way.
//
// Each row of a tile is summed on its own, over all inputs in one order, so that a row's result has the same bits
// whatever the rows beside it. No sum of products needs to be put in scale on the way, and inputs are not rounded any
// further. Spreading the weights out keeps pace with memory. Only for CPUs with matrix tiles.

#include "panel_codes.h"

#if defined(__AMX_BF16__)

#include "parallel.h"
#include "scratch.h"
#include "tile_results.h"
#include "tile_sums.h"

namespace {

constexpr int64_t kAhead = 12 * 1024;  // bytes between what is spread out and what is fetched from memory

// Blocks that are spread out before the tiles take the first: a store must have left for the cache before a tile can
// load what it wrote.
constexpr int64_t kLag = 2;
constexpr int64_t kMostBlocks = 18;     // blocks of inputs of a group of rows that stay in the nearest cache
constexpr int64_t kMostPanels = 12;     // that are spread out before further groups of rows go through them
constexpr int64_t kCachedBlocks = 256;  // likewise, blocks: half a second-level cache
constexpr int64_t kLeastGroups = 4;     // of rows that a thread takes for itself rather than a share of the panels
constexpr int64_t kUnitsPerThread = 4;
constexpr int64_t kSumsSize = kRowGroup * kPanel;

TRIOLET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TRIOLET_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
TRIOLET_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// From `first` up to `end`.
struct Span {
    int64_t first, end;

    int64_t size() const { return end - first; }
};

TRIOLET_INLINE Span share_of(int64_t total, int64_t index, int64_t count) {
    return {index * total / count, (index + 1) * total / count};
}

template <class Codes, class Kind>
struct Linear {
    static constexpr int64_t kNumParts = Kind::kNumParts;

    const bf16* x;
    const uint8_t* weights;
    int64_t num_rows, width;
    ResultSpace space;

    // What a worker has in hand. Sums that go on in later runs have places of their own.
    struct Worker {
        SpreadBlock* blocks;  // of the panels at work, if more than one group of rows goes through them
        Results<Kind> results;
        TileSession session;
        SpreadBlock ring[kLag + 1];
        alignas(64) float sums[kMostPanels][kSumsSize];

        Worker(SpreadBlock* blocks, const ResultSpace& space) : blocks(blocks), results(space) {}
    };

    int64_t num_blocks() const { return width / kBlock; }
    int64_t num_panels() const { return divide_up(space.num_columns, kPanel); }  // of results
    int64_t num_groups() const { return divide_up(num_rows, kRowGroup); }

    const uint8_t* codes_of(int64_t panel, int64_t part) const {
        return weights + (part * num_panels() + panel) * num_blocks() * Codes::kSize;
    }

    // Spreads a block out, and starts the way from memory of one that will be wanted later.
    template <class Beside>
    static TRIOLET_INLINE void spread(const uint8_t* codes, SpreadBlock& block, const Beside& beside) {
        Codes::spread(codes, block, [&](int step) __attribute__((always_inline)) {
            for (int64_t i = step * 64; i < Codes::kSize; i += kSteps * 64) __builtin_prefetch(codes + kAhead + i);
            beside(step);
        });
    }

    // Sums of a group of rows over a panel, which is spread out into `blocks` on the way, the first of them again after
    // the last: the tiles work on a block while the one after the next is spread out.
    template <bool HAS_SECOND, class Beside>
    void spread_and_add(const bf16* rows, const uint8_t* codes, SpreadBlock* blocks, int64_t num_places,
                        const Beside& beside) const {
        int64_t next = 0, current = 0;
        auto multiply = [&](int step) __attribute__((always_inline)) {
            TileSums<HAS_SECOND>::add_step(step, rows, width, blocks[current]);
        };
        TileSums<HAS_SECOND>::clear();
        for (int64_t i = 0; i < num_blocks() + kLag; ++i, codes += Codes::kSize) {
            asm volatile("" ::: "memory");  // tile instructions do not tell the compiler what they read
            if (i >= num_blocks()) {
#pragma GCC unroll 8
                for (int step = 0; step < kSteps && i >= kLag; ++step) multiply(step);
            } else if (i >= kLag) {
                spread(codes, blocks[next], multiply);
            } else {
                spread(codes, blocks[next], [](int) {});
            }
            beside();
            if (++next == num_places) next = 0;
            if (i < kLag) continue;
            rows += kBlock;
            if (++current == num_places) current = 0;
        }
    }

    // The first group of rows through some panels, which lie spread out after it if others are to follow.
    template <bool HAS_SECOND>
    void run_first_group(Worker& worker, Span panels, Span rows, bool is_alone) const {
        SpreadBlock* blocks = is_alone ? worker.ring : worker.blocks;
        for (int64_t panel = panels.first; panel < panels.end; ++panel) {
            for (int64_t part = 0; part < kNumParts; ++part) {
                spread_and_add<HAS_SECOND>(x + rows.first * width, codes_of(panel, part), blocks,
                                           is_alone ? kLag + 1 : num_blocks(), beside(worker));
                put_aside<HAS_SECOND>(worker, worker.sums[part]);
                if (!is_alone) blocks += num_blocks();
            }
            worker.results.take(worker.sums[0], kSumsSize, panel, rows.first, rows.size());
        }
    }

    // A further one. Its inputs are taken in runs that stay in the nearest cache, and sums put aside in between.
    template <bool HAS_SECOND>
    void run_next_group(Worker& worker, Span panels, Span rows) const {
        const int64_t num_runs = divide_up(num_blocks(), kMostBlocks);
        for (int64_t index = 0; index < num_runs; ++index) {
            const Span run = share_of(num_blocks(), index, num_runs);
            const SpreadBlock* blocks = worker.blocks + run.first;
            for (int64_t panel = panels.first; panel < panels.end; ++panel) {
                const int64_t place = num_runs > 1 ? (panel - panels.first) * kNumParts : 0;
                for (int64_t part = 0; part < kNumParts; ++part, blocks += num_blocks()) {
                    float* sums = worker.sums[place + part];
                    index ? TileSums<HAS_SECOND>::load(sums) : TileSums<HAS_SECOND>::clear();
                    TileSums<HAS_SECOND>::add(x + rows.first * width + run.first * kBlock, width, blocks, run.size(),
                                              beside(worker));
                    put_aside<HAS_SECOND>(worker, sums);
                }
                if (index + 1 == num_runs)
                    worker.results.take(worker.sums[place], kSumsSize, panel, rows.first, rows.size());
            }
        }
    }

    // What is done while tiles work: results of the sums before are written.
    static TRIOLET_INLINE auto beside(Worker& worker) {
        return [&]() __attribute__((always_inline)) { worker.results.write_some(); };
    }

    // The tiles to where results may still have to be written from.
    template <bool HAS_SECOND>
    static TRIOLET_INLINE void put_aside(Worker& worker, float* sums) {
        worker.results.write_all();
        TileSums<HAS_SECOND>::save(sums);
    }

    // Some rows through some panels, of which the worker has room for the blocks.
    void run_panels(Worker& worker, Span panels, Span rows) const {
        const bool is_alone = rows.size() <= kRowGroup;
        for (int64_t first = rows.first; first < rows.end; first += kRowGroup) {
            const Span group = {first, smaller(first + kRowGroup, rows.end)};
            const bool has_second = worker.session.use(group.size()) > kTileRows;
            if (first > rows.first)
                has_second ? run_next_group<true>(worker, panels, group) : run_next_group<false>(worker, panels, group);
            else if (has_second)
                run_first_group<true>(worker, panels, group, is_alone);
            else
                run_first_group<false>(worker, panels, group, is_alone);
        }
        worker.results.write_all();
    }

    // Panels of results for which a worker spreads weights out at a time.
    int64_t panels_at_a_time() const {
        return larger(1, smaller(kMostPanels, kCachedBlocks / num_blocks()) / kNumParts);
    }

    // Few rows share out the panels. Many share out the rows as well, in bands of one to a thread: what a thread spreads
    // out again costs less than inputs and outputs that are in the other's cache. False if there is no memory for that.
    bool run(RunTeam run_team, int64_t num_threads) const {
        const int64_t num_bands = num_groups() < kLeastGroups * num_threads ? 1 : num_threads;
        const int64_t num_columns = smaller(num_panels(), num_threads * kUnitsPerThread / num_bands);
        const int64_t room = num_rows > kRowGroup ? panels_at_a_time() * kNumParts * num_blocks() : 0;
        Scratch<SpreadBlock> blocks(num_threads * room);
        if (!blocks) return false;
        int64_t num_workers = 0;
        share_units(run_team, num_threads, num_bands * num_columns, [&] {
            SpreadBlock* own = blocks.values + __atomic_fetch_add(&num_workers, 1, __ATOMIC_RELAXED) * room;
            return [this, own, num_bands, num_columns](int64_t unit) {
                Worker worker(own, space);
                const Span band = share_of(num_groups(), unit / num_columns, num_bands);
                const Span rows = {band.first * kRowGroup, smaller(band.end * kRowGroup, num_rows)};
                const Span all = share_of(num_panels(), unit % num_columns, num_columns);
                for (int64_t first = all.first; first < all.end; first += panels_at_a_time())
                    run_panels(worker, {first, smaller(first + panels_at_a_time(), all.end)}, rows);
            };
        });
        return true;
    }
};

template <class Kind>
bool run_linear(const bf16* x, const uint8_t* weights, int64_t num_rows, int64_t width, int64_t kind,
                const ResultSpace& space, RunTeam run_team, int64_t num_threads) {
    auto run = [&](auto codes) {
        return Linear<decltype(codes), Kind>{x, weights, num_rows, width, space}.run(run_team, num_threads);
    };
    if (kind == 0) return run(NibbleCodes<false>{});
    if (kind == 1) return run(NibbleCodes<true>{});
    return run(ByteCodes{});
}

}  // namespace

// x (num_rows, width) times the packed weight (num_outputs, width) times factor, plus bias (num_outputs,) float32 or
// null → output (num_rows, num_outputs). `kind`: 0 for 4-bit codes, 1 for those with minimums, 2 for 8-bit codes.
TRIOLET_EXPORT(tile_linear_bfloat16)
(const bf16* x, const uint8_t* weights, const float* bias, bf16* output, int64_t num_rows, int64_t width,
 int64_t num_outputs, int64_t kind, float factor, RunTeam run_team, int64_t num_threads) {
    return run_linear<Plain>(x, weights, num_rows, width, kind, {bias, output, num_outputs, factor}, run_team,
                             num_threads);
}

// The same with half the outputs: of 2 num_outputs, a multiple of 64, the first half are gates for the second half.
#define TRIOLET_GATED_LINEAR(name, Activation)                                                                         \
    TRIOLET_EXPORT(name)                                                                                               \
    (const bf16* x, const uint8_t* weights, const float* bias, bf16* output, int64_t num_rows, int64_t width,          \
     int64_t num_outputs, int64_t kind, float factor, RunTeam run_team, int64_t num_threads) {                         \
        return run_linear<Gated<Activation>>(x, weights, num_rows, width, kind, {bias, output, num_outputs, factor},   \
                                             run_team, num_threads);                                                   \
    }

TRIOLET_GATED_LINEAR(silu_tile_linear_bfloat16, Silu)
TRIOLET_GATED_LINEAR(gelu_tile_linear_bfloat16, Gelu)

#endif
