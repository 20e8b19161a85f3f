// Rows of a table of quantised weights, decoded. Compiled for the oldest CPU: a step needs few rows, and short ones.
//
// Values are those of quant.py, bit for bit: a code is scaled and rounded, then the minimum is added.

#include "parallel.h"
#include "simd.h"

namespace {

constexpr int64_t kBlock = 32;

// A float16; its subnormal numbers come out right as well.
float half_to_float(const uint8_t* source) {
    uint16_t half;
    memcpy(&half, source, 2);
    uint32_t magnitude = half & 0x7fff, bits = magnitude << 13;
    float value;
    memcpy(&value, &bits, 4);
    value *= 0x1p112f;  // the difference between the biases of the two exponents
    memcpy(&bits, &value, 4);
    if (magnitude >= 0x7c00) bits = 0x7f800000 | magnitude << 13;
    bits |= uint32_t(half & 0x8000) << 16;
    memcpy(&value, &bits, 4);
    return value;
}

// The 32 values of a block of Q4_0 or Q4_1 (4 bits; the latter with minimums, and no offset), or of Q8_0.
template <class T>
void decode_block(const uint8_t* block, T* output, int64_t bits, int64_t offset) {
    const float scale = half_to_float(block);
    const bool has_minimum = offset == 0;
    const float minimum = has_minimum ? half_to_float(block + 2) : 0;
    const uint8_t* codes = block + (has_minimum ? 4 : 2);
    for (int64_t i = 0; i < kBlock; ++i) {
        const int code = bits == 8 ? int8_t(codes[i]) : (i < 16 ? codes[i] & 15 : codes[i - 16] >> 4) - int(offset);
        const float value = float(code) * scale;
        put(output + i, has_minimum ? value + minimum : value);
    }
}

template <class T>
bool embed(const uint8_t* table, const int64_t* token_ids, T* output, int64_t num_tokens, int64_t width, int64_t bits,
           int64_t offset, RunTeam run_team, int64_t num_threads) {
    const int64_t block_bytes = (offset == 0 ? 4 : 2) + kBlock * bits / 8, num_blocks = width / kBlock;
    for_each_row(run_team, num_threads, num_tokens, width, [=](int64_t token) {
        const uint8_t* row = table + token_ids[token] * num_blocks * block_bytes;
        for (int64_t block = 0; block < num_blocks; ++block)
            decode_block(row + block * block_bytes, output + token * width + block * kBlock, bits, offset);
    });
    return true;
}

}  // namespace

// table (V, blocks of a GGUF format), token_ids (num_tokens,) → output (num_tokens, width)
#define TRIOLET_EMBEDDING(name, T)                                                                                  \
    TRIOLET_EXPORT(name)                                                                                            \
    (const uint8_t* table, const int64_t* token_ids, T* output, int64_t num_tokens, int64_t width, int64_t bits,    \
     int64_t offset, RunTeam run_team, int64_t num_threads) {                                                       \
        return embed(table, token_ids, output, num_tokens, width, bits, offset, run_team, num_threads);             \
    }

TRIOLET_EMBEDDING(embedding_float32, float)
TRIOLET_EMBEDDING(embedding_bfloat16, bf16)
