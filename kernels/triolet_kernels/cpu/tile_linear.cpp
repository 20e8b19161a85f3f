// Linear layers with weights kept quantised, on matrix tiles (AMX-BF16): inputs stay bf16, weights become it on the way.
//
// Each row of a tile is summed on its own, over all inputs in one order, so that a row's result has the same bits
// whatever the rows beside it. No sum of products needs to be put in scale on the way, and inputs are not rounded any
// further. Spreading the weights out keeps pace with memory. Only for CPUs with matrix tiles.

#include "panel_codes.h"

#if defined(__AMX_BF16__)

#include "parallel.h"
#include "tile_session.h"

namespace {

constexpr int64_t kRowGroup = 2 * kTileRows;  // rows that go through a panel together
constexpr int64_t kMaxRows = 512;             // rows whose sums are kept while a panel is worked on
constexpr int64_t kAhead = 12 * 1024;         // bytes between what is spread out and what is fetched from memory

// Blocks that are spread out before the tiles take the first: a store must have left for the cache before a tile can
// load what it wrote.
constexpr int64_t kLag = 2;
// Blocks that are spread out for all groups of rows together, so that they are still in the nearest cache for the last.
constexpr int64_t kMostBlocks = 18;

TRIOLET_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TRIOLET_INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Sums of a group of rows over all blocks of a panel, in the tiles 0 to 3.
template <bool HAS_SECOND>
struct TileSums {
    static constexpr int64_t kRowBytes = kPanel * sizeof(float), kHalf = kPanel / 2, kSecond = kTileRows * kPanel;

    static TRIOLET_INLINE void clear() {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (HAS_SECOND) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }

    static TRIOLET_INLINE void load(const float* sums) {
        _tile_stream_loadd(0, sums, kRowBytes);
        _tile_stream_loadd(1, sums + kHalf, kRowBytes);
        if constexpr (HAS_SECOND) {
            _tile_stream_loadd(2, sums + kSecond, kRowBytes);
            _tile_stream_loadd(3, sums + kSecond + kHalf, kRowBytes);
        }
    }

    static TRIOLET_INLINE void save(float* sums) {
        _tile_stored(0, sums, kRowBytes);
        _tile_stored(1, sums + kHalf, kRowBytes);
        if constexpr (HAS_SECOND) {
            _tile_stored(2, sums + kSecond, kRowBytes);
            _tile_stored(3, sums + kSecond + kHalf, kRowBytes);
        }
        asm volatile("" ::: "memory");  // tile instructions do not tell the compiler what they read and write
    }

    // A block's share of one of kSteps steps, so that spreading out another goes on in between.
    static TRIOLET_INLINE void add_step(int step, const bf16* x, int64_t width, const SpreadBlock& block) {
        const int64_t stride = width * int64_t(sizeof(bf16));
        if (step == 0) _tile_stream_loadd(4, x, stride);
        if (step == 1) _tile_loadd(6, block.tiles[0], 64);
        if (step == 3) _tile_dpbf16ps(0, 4, 6);
        if (step == 5) _tile_loadd(7, block.tiles[1], 64);
        if (step == 7) _tile_dpbf16ps(1, 4, 7);
        if constexpr (HAS_SECOND) {
            if (step == 2) _tile_stream_loadd(5, x + kTileRows * width, stride);
            if (step == 5) _tile_dpbf16ps(2, 5, 6);
            if (step == 7) _tile_dpbf16ps(3, 5, 7);
        }
    }

    // Inputs pass by; the weights, which the next group of rows wants again, keep their place in the cache.
    static TRIOLET_INLINE void add(const bf16* x, int64_t width, const SpreadBlock* blocks, int64_t num_blocks) {
        const int64_t stride = width * int64_t(sizeof(bf16));
        asm volatile("" ::: "memory");
        for (int64_t block = 0; block < num_blocks; ++block, x += kBlock) {
            _tile_stream_loadd(4, x, stride);
            _tile_loadd(6, blocks[block].tiles[0], 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, blocks[block].tiles[1], 64);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (HAS_SECOND) {
                _tile_stream_loadd(5, x + kTileRows * width, stride);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
};

// Blocks of a panel that go through all groups of rows before the next ones, and where they are spread out.
struct Run {
    int64_t first, num_blocks;
    SpreadBlock* blocks;
    int64_t num_places;
};

template <class Codes>
struct Linear {
    const bf16* x;
    const uint8_t* weights;
    const float* bias;
    bf16* output;
    int64_t num_rows, width, num_outputs;
    float factor;

    int64_t num_panels() const { return divide_up(num_outputs, kPanel); }

    const uint8_t* codes_of(int64_t panel, int64_t block) const {
        return weights + (panel * (width / kBlock) + block) * Codes::kSize;
    }

    // Spreads a block out, and starts the way from memory of one that will be wanted later.
    template <class Beside>
    static TRIOLET_INLINE void spread(const uint8_t* codes, SpreadBlock& block, const Beside& beside) {
        Codes::spread(codes, block, [&](int step) __attribute__((always_inline)) {
            for (int64_t i = step * 64; i < Codes::kSize; i += kSteps * 64) __builtin_prefetch(codes + kAhead + i);
            beside(step);
        });
    }

    // Brings the tiles, which hold the sums of a group of rows, forward by a run of blocks, which it spreads out into
    // `blocks` on the way, the first of them again after the last: the tiles work on a block while the one after the next
    // is spread out.
    template <bool HAS_SECOND>
    void spread_and_add(const bf16* rows, const uint8_t* codes, int64_t num_blocks, SpreadBlock* blocks,
                        int64_t num_places) const {
        int64_t next = 0, current = 0;
        auto multiply = [&](int step) __attribute__((always_inline)) {
            TileSums<HAS_SECOND>::add_step(step, rows, width, blocks[current]);
        };
        for (int64_t i = 0; i < num_blocks + kLag; ++i, codes += Codes::kSize) {
            asm volatile("" ::: "memory");  // tile instructions do not tell the compiler what they read
            if (i >= num_blocks) {
#pragma GCC unroll 8
                for (int step = 0; step < kSteps && i >= kLag; ++step) multiply(step);
            } else if (i >= kLag) {
                spread(codes, blocks[next], multiply);
            } else {
                spread(codes, blocks[next], [](int) {});
            }
            if (++next == num_places) next = 0;
            if (i < kLag) continue;
            rows += kBlock;
            if (++current == num_places) current = 0;
        }
    }

    // Brings the sums of a group of rows forward by a run of blocks, which are spread out on the way if `codes` are given.
    template <bool HAS_SECOND>
    void continue_group(const Run& run, int64_t first_row, const uint8_t* codes, float* sums) const {
        const bf16* rows = x + first_row * width + run.first * kBlock;
        if (run.first)
            TileSums<HAS_SECOND>::load(sums);
        else
            TileSums<HAS_SECOND>::clear();
        if (codes)
            spread_and_add<HAS_SECOND>(rows, codes, run.num_blocks, run.blocks, run.num_places);
        else
            TileSums<HAS_SECOND>::add(rows, width, run.blocks, run.num_blocks);
        TileSums<HAS_SECOND>::save(sums);
    }

    // A panel times `count` rows. sums: room for [count][kPanel]
    void run_panel(int64_t panel, int64_t first_row, int64_t count, TileSession& session, float* sums) const {
        const int64_t num_blocks = width / kBlock;
        const int64_t num_runs = count > kRowGroup ? divide_up(num_blocks, kMostBlocks) : 1;
        SpreadBlock blocks[kMostBlocks];
        for (int64_t index = 0; index < num_runs; ++index) {
            int64_t first = index * num_blocks / num_runs, end = (index + 1) * num_blocks / num_runs;
            Run run = {first, end - first, blocks, count > kRowGroup ? kMostBlocks : kLag + 1};
            for (int64_t row = 0; row < count; row += kRowGroup) {
                int64_t size = smaller(kRowGroup, count - row);
                const uint8_t* codes = row ? nullptr : codes_of(panel, first);
                if (session.use(size) > kTileRows)
                    continue_group<true>(run, first_row + row, codes, sums + row * kPanel);
                else
                    continue_group<false>(run, first_row + row, codes, sums + row * kPanel);
                if (end == num_blocks) write(panel, first_row + row, size, sums + row * kPanel);
            }
        }
    }

    // Sums of a panel, put in scale, to their place in the output.
    void write(int64_t panel, int64_t first_row, int64_t count, const float* sums) const {
        const int64_t first_output = panel * kPanel, rest = num_outputs - first_output;
        alignas(64) float panel_bias[kPanel] = {};
        if (bias) memcpy(panel_bias, bias + first_output, sizeof(float) * (smaller(rest, kPanel)));
        const Vec bias_left = load(panel_bias), bias_right = load(panel_bias + kLanes);
        const __mmask32 is_there = rest < kPanel ? (1u << rest) - 1 : ~0u;
        bf16* target = output + first_row * num_outputs + first_output;
        for (int64_t row = 0; row < count; ++row, sums += kPanel, target += num_outputs) {
            Vec left = fma(load(sums), splat(factor), bias_left);
            Vec right = fma(load(sums + kLanes), splat(factor), bias_right);
            _mm512_mask_storeu_epi16(target, is_there, (__m512i)_mm512_cvtne2ps_pbh(right, left));
        }
    }

    void run(RunTeam run_team, int64_t num_threads) const {
        constexpr int64_t kUnitsPerThread = 4;
        int64_t num_units = smaller(num_panels(), num_threads * kUnitsPerThread);
        for_each_unit(run_team, num_threads, num_units, [&](int64_t unit) {
            alignas(64) float sums[kMaxRows * kPanel];
            TileSession session;
            int64_t first = unit * num_panels() / num_units, end = (unit + 1) * num_panels() / num_units;
            for (int64_t row = 0; row < num_rows; row += kMaxRows) {
                int64_t count = smaller(kMaxRows, num_rows - row);
                for (int64_t panel = first; panel < end; ++panel) run_panel(panel, row, count, session, sums);
            }
        });
    }
};

}  // namespace

// x (num_rows, width) times the packed weight (num_outputs, width) times factor, plus bias (num_outputs,) float32 or
// null → output (num_rows, num_outputs). `kind`: 0 for 4-bit codes, 1 for those with minimums, 2 for 8-bit codes.
TRIOLET_EXPORT(tile_linear_bfloat16)
(const bf16* x, const uint8_t* weights, const float* bias, bf16* output, int64_t num_rows, int64_t width,
 int64_t num_outputs, int64_t kind, float factor, RunTeam run_team, int64_t num_threads) {
    auto run = [&](auto codes) {
        Linear<decltype(codes)>{x, weights, bias, output, num_rows, width, num_outputs, factor}.run(run_team, num_threads);
    };
    if (kind == 0)
        run(NibbleCodes<false>{});
    else if (kind == 1)
        run(NibbleCodes<true>{});
    else
        run(ByteCodes{});
    return true;
}

#endif
