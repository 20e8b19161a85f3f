// What a tile of rows sees of a span, as values of T: those of a cache of T where they are, codes spread out nearby.
//
// The kernels that multiply them need not know in which form a cache keeps them.
#pragma once

#include "cache_codes.h"
#include "cache_fetching.h"

namespace {

// A vector of codes as values of T, times factors: those of keys from token to token, each P times, or those of the
// values of P tokens in turn.
template <class T>
struct Spreading {
    using Factors = Vec;
    static constexpr int kWidth = kLanes, kPair = PairSize<T>::value;

    static TRIOLET_INLINE Factors of_keys(const bf16* scales) {
        float factors[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) factors[lane] = factor_of(scales[lane / kPair]);
        return load(factors);
    }
    static TRIOLET_INLINE Factors of_values(const bf16* scales) {
        return keep_bits(splat(factor_of(scales[0])), 0x5555, factor_of(scales[kPair - 1]));
    }
    static TRIOLET_INLINE void spread(const Code* codes, Factors factors, T* target) {
        store_exact(target, mul(load(&codes->value), factors));
    }
};

#if defined(__AVX512FP16__)

// By way of float16, which has room for a code: what it has of exponent and digits lies in a bfloat16 three bits lower,
// and its scale is added to the exponent.
template <>
struct Spreading<bf16> {
    using Factors = __m512i;
    static constexpr int kWidth = 32;

    static TRIOLET_INLINE Factors of_keys(const bf16* scales) {
        __m512i once = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
        return exponents(_mm512_or_si512(once, _mm512_slli_epi32(once, 16)));
    }
    static TRIOLET_INLINE Factors of_values(const bf16* scales) {
        int32_t pair;
        memcpy(&pair, scales, 4);
        return exponents(_mm512_set1_epi32(pair));
    }
    static TRIOLET_INLINE Factors exponents(__m512i scales) {
        return _mm512_sub_epi16(scales, _mm512_set1_epi16(15 << 7));  // what float16 adds to an exponent
    }
    static TRIOLET_INLINE void spread(const Code* codes, Factors factors, bf16* target) {
        __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
        __m512i half = _mm512_castph_si512(_mm512_cvtepi16_ph(_mm512_cvtepi8_epi16(bytes)));
        __m512i small = _mm512_and_si512(_mm512_srai_epi16(half, 3), _mm512_set1_epi16(int16_t(0x8fff)));
        _mm512_store_si512(target, _mm512_add_epi16(small, factors));
    }
};

#endif

// Keys of a chunk, as a block of as many tokens has them.
template <class T>
TRIOLET_INLINE void spread_keys(const Chunk<Code>& chunk, const ChunkGeometry& geometry, T* target) {
    constexpr int64_t P = PairSize<T>::value, kWidth = Spreading<T>::kWidth;
    const int64_t stride = geometry.block_size * P, size = geometry.chunk * P;
    for (int64_t i = 0; i < size; i += kWidth) {
        auto factors = Spreading<T>::of_keys(chunk.key_scales + i / P);
        const Code* codes = chunk.keys + i;
        for (int64_t d = 0; d < geometry.head_dim; d += P, codes += stride) {
            Spreading<T>::spread(codes, factors, target + d * geometry.chunk + i);
        }
    }
}

// Values of a chunk, in the same way.
template <class T>
TRIOLET_INLINE void spread_values(const Chunk<Code>& chunk, const ChunkGeometry& geometry, T* target) {
    constexpr int64_t P = PairSize<T>::value, kWidth = Spreading<T>::kWidth;
    const int64_t size = geometry.head_dim * P;
    for (int64_t token = 0; token < geometry.chunk; token += P) {
        auto factors = Spreading<T>::of_values(chunk.value_scales + token);
        const int64_t start = token * geometry.head_dim;
        for (int64_t i = start; i < start + size; i += kWidth) Spreading<T>::spread(chunk.values + i, factors, target + i);
    }
}

// E is what the cache is made of.
template <class T, class E>
class CacheReader;

template <class T>
class CacheReader<T, T> {
public:
    explicit CacheReader(const ChunkGeometry& geometry) : geometry(geometry) {}

    // Where `num_keys` from position `first` on are: they are in one block, from `offset` on.
    static Chunk<T> find(const T* key_page, const T* value_page, int64_t offset, const ChunkGeometry& geometry,
                         int64_t first, int num_keys) {
        return {key_page + key_index<T>(offset, 0, geometry.block_size),
                value_page + value_index<T>(offset, 0, geometry.head_dim), first, num_keys};
    }

    // Pieces of work on a chunk beside which to fetch.
    static constexpr int64_t kPieces = 0;

    const Chunks<T>& read(const Chunks<T>& chunks, Fetching<T, T>&) { return chunks; }

    const ChunkGeometry geometry;  // of the chunks that have been read
};

template <class T>
class CacheReader<T, Code> {
public:
    explicit CacheReader(const ChunkGeometry& geometry) : geometry(geometry), geometry_of_blocks_(geometry) {
        this->geometry.block_size = geometry.chunk;
    }

    static Chunk<Code> find(const Code* key_page, const Code* value_page, int64_t offset, const ChunkGeometry& geometry,
                            int64_t first, int num_keys) {
        const int64_t block_size = geometry.block_size, head_dim = geometry.head_dim;
        return {key_page + key_index<T>(offset, 0, block_size), value_page + value_index<T>(offset, 0, head_dim),
                scales_of(key_page, block_size, head_dim) + offset, scales_of(value_page, block_size, head_dim) + offset,
                first, num_keys};
    }

    static constexpr int64_t kPieces = 2;

    const Chunks<T>& read(const Chunks<Code>& chunks, Fetching<T, Code>& fetching) {
        near_.count = chunks.count;
        for (int i = 0; i < chunks.count; ++i) {
            const Chunk<Code>& chunk = chunks.chunk[i];
            const int64_t start = i * geometry.chunk * geometry.head_dim;
            fetching.beside();
            spread_keys(chunk, geometry_of_blocks_, keys_ + start);
            fetching.beside();
            spread_values(chunk, geometry_of_blocks_, values_ + start);
            near_.chunk[i] = {keys_ + start, values_ + start, chunk.first, chunk.num_keys};
        }
        return near_;
    }
    ChunkGeometry geometry;

private:
    const ChunkGeometry geometry_of_blocks_;
    Chunks<T> near_;
    alignas(64) T keys_[kSpan * kMaxHeadDim];
    alignas(64) T values_[kSpan * kMaxHeadDim];
};

}  // namespace
