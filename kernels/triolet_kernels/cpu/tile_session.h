// Whole matrix tiles (AMX), all eight of them, for as long as a thread holds a session.
#pragma once

#include <immintrin.h>

#include <cstdint>

#if defined(__AMX_BF16__)

namespace {

// As ldtilecfg reads it: every tile has 16 rows of 64 bytes.
struct WholeTiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

class WholeTileSession {
public:
    WholeTileSession() {
        alignas(64) static const WholeTiles shapes = {
            1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
        _tile_loadconfig(&shapes);
    }
    ~WholeTileSession() { _tile_release(); }
};

}  // namespace

#endif
