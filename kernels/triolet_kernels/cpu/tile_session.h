// Matrix tiles (AMX) and their shapes, for as long as a thread holds a session.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__AMX_BF16__)

namespace {

constexpr int kTileRows = 16;

// As ldtilecfg reads it. Tiles 2 r + h are for sums of rows 16 r on and 16 columns h, 4 and 5 for inputs of those rows,
// 6 and 7 for what they are multiplied with. Fewer rows take less time.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};

    explicit TileShapes(int64_t num_rows) {
        auto first = uint8_t(num_rows < kTileRows ? num_rows : kTileRows);
        auto second = uint8_t(num_rows > kTileRows ? num_rows - kTileRows : 1);
        const uint8_t each[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
        memcpy(rows, each, sizeof each);
    }
};

// Gives the tiles their shapes, while it lives and as often as the number of rows changes.
class TileSession {
public:
    // For up to 32 rows, which it returns.
    int64_t use(int64_t num_rows) {
        if (num_rows == num_rows_) return num_rows;
        TileShapes shapes(num_rows);
        asm volatile("" ::: "memory");  // tile instructions do not tell the compiler what they read
        _tile_loadconfig(&shapes);
        return num_rows_ = num_rows;
    }
    ~TileSession() {
        if (num_rows_) _tile_release();
    }

private:
    int64_t num_rows_ = 0;
};

// All tiles whole.
class WholeTileSession {
public:
    WholeTileSession() { session_.use(2 * kTileRows); }

private:
    TileSession session_;
};

}  // namespace

#endif
