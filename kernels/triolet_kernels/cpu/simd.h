// Vectors of float32 for the instruction set this translation unit is compiled for.
//
// TRIOLET_ISA names the variant (amx, avx512, avx2, portable). Everything here is in an anonymous namespace: an
// inline function shared between variants could be linked from the wrong one and fault on an older CPU. For the
// same reason no C++ library header is included. Knows nothing of models or caches.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX512BF16__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define TRIOLET_JOIN2(name, isa) triolet_##name##_##isa
#define TRIOLET_JOIN(name, isa) TRIOLET_JOIN2(name, isa)
// A kernel. It returns whether it had the memory it needed; if not, what it was to write means nothing.
#define TRIOLET_EXPORT(name) \
    extern "C" __attribute__((visibility("default"))) bool TRIOLET_JOIN(name, TRIOLET_ISA)
#define TRIOLET_INLINE inline __attribute__((always_inline))

namespace {

struct bf16 {
    uint16_t bits;
};

TRIOLET_INLINE float to_float(float value) { return value; }

TRIOLET_INLINE float to_float(bf16 value) {
    uint32_t bits = uint32_t(value.bits) << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

TRIOLET_INLINE void put(float* target, float value) { *target = value; }

// Round to nearest, ties to even; a NaN stays a NaN.
TRIOLET_INLINE void put(bf16* target, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    target->bits = value != value ? 0x7fc0 : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Values of T that one 32-bit lane of a "pair" vector holds: two bf16, or one float.
template <class T>
struct PairSize;
template <>
struct PairSize<float> {
    static constexpr int64_t value = 1;
};
template <>
struct PairSize<bf16> {
    static constexpr int64_t value = 2;
};

#if defined(__AVX512BF16__)

using Vec = __m512;
using BfPairs = __m512bh;
constexpr int kLanes = 16;
constexpr int kMaxTileRows = 8;  // rows × 2 vectors of accumulators stay in the 32 registers

TRIOLET_INLINE Vec splat(float value) { return _mm512_set1_ps(value); }
TRIOLET_INLINE Vec load(const float* source) { return _mm512_loadu_ps(source); }
TRIOLET_INLINE Vec load(const bf16* source) {
    __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
TRIOLET_INLINE Vec load(const int8_t* source) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
TRIOLET_INLINE void store(float* target, Vec value) { _mm512_storeu_ps(target, value); }
TRIOLET_INLINE void store(bf16* target, Vec value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), (__m256i)_mm512_cvtneps_pbh(value));
}
TRIOLET_INLINE void store_exact(bf16* target, Vec value) { store(target, value); }
TRIOLET_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
TRIOLET_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
TRIOLET_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
TRIOLET_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
TRIOLET_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
TRIOLET_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
TRIOLET_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
TRIOLET_INLINE float sum_lanes(Vec a) { return _mm512_reduce_add_ps(a); }
TRIOLET_INLINE float max_lanes(Vec a) { return _mm512_reduce_max_ps(a); }
// `value`, but 0 in the lanes where `test` is less than the limit; a NaN is not.
TRIOLET_INLINE Vec zero_below(Vec value, Vec test, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, splat(limit), _CMP_NLT_UQ), value);
}
TRIOLET_INLINE Vec keep_lanes(Vec value, int first, int end, float other) {
    uint32_t mask = ((1u << end) - 1) & ~((1u << first) - 1);
    return _mm512_mask_blend_ps(__mmask16(mask), splat(other), value);
}
// `value` in the lanes whose bit is set, from the lowest, and `other` in those whose bit is not.
TRIOLET_INLINE Vec keep_bits(Vec value, uint32_t bits, float other) {
    return _mm512_mask_blend_ps(__mmask16(bits), splat(other), value);
}
// Adds the low bits of `shifted` to the exponent of `value`.
TRIOLET_INLINE Vec add_exponent(Vec value, Vec shifted) {
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(value), exponent));
}
TRIOLET_INLINE BfPairs load_pairs(const bf16* source) { return (BfPairs)_mm512_loadu_si512(source); }
// Puts values to the first (0) or second (1) place of as many pairs, and leaves the other as it is: it may be another
// thread's.
TRIOLET_INLINE void store_in_pairs(bf16* pairs, const bf16* source, int place) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
    __m512i placed = _mm512_sll_epi32(wide, _mm_cvtsi32_si128(place * 16));
    _mm512_mask_storeu_epi16(pairs, 0x55555555u << place, placed);
}
TRIOLET_INLINE BfPairs splat_pair(const bf16* source) {
    int32_t pair;
    memcpy(&pair, source, 4);
    return (BfPairs)_mm512_set1_epi32(pair);
}
TRIOLET_INLINE BfPairs first_of_pairs(BfPairs pairs) {
    return (BfPairs)_mm512_and_si512((__m512i)pairs, _mm512_set1_epi32(0xffff));
}
TRIOLET_INLINE Vec dot(Vec sum, BfPairs a, BfPairs b) { return _mm512_dpbf16_ps(sum, a, b); }

#else

#if defined(__AVX2__)

using Vec = __m256;
constexpr int kLanes = 8;
constexpr int kMaxTileRows = 4;  // 16 registers

TRIOLET_INLINE Vec splat(float value) { return _mm256_set1_ps(value); }
TRIOLET_INLINE Vec load(const float* source) { return _mm256_loadu_ps(source); }
TRIOLET_INLINE void store(float* target, Vec value) { _mm256_storeu_ps(target, value); }
TRIOLET_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
TRIOLET_INLINE Vec lane_numbers() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
TRIOLET_INLINE Vec load(const bf16* source) {
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
TRIOLET_INLINE Vec load(const int8_t* source) {
    __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

#else

typedef float Vec __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kMaxTileRows = 4;

TRIOLET_INLINE Vec splat(float value) { return Vec{value, value, value, value}; }
TRIOLET_INLINE Vec load(const float* source) {
    Vec value;
    memcpy(&value, source, sizeof value);
    return value;
}
TRIOLET_INLINE void store(float* target, Vec value) { memcpy(target, &value, sizeof value); }
TRIOLET_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
TRIOLET_INLINE Vec lane_numbers() { return Vec{0, 1, 2, 3}; }
TRIOLET_INLINE Vec load(const bf16* source) {
    return Vec{to_float(source[0]), to_float(source[1]), to_float(source[2]), to_float(source[3])};
}
TRIOLET_INLINE Vec load(const int8_t* source) {
    return Vec{float(source[0]), float(source[1]), float(source[2]), float(source[3])};
}

#endif

// What AVX2 and the portable variant share, through the compiler's own vectors.

typedef int32_t Lanes __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

struct BfPairs {
    Vec first, second;
};

TRIOLET_INLINE Vec add(Vec a, Vec b) { return a + b; }
TRIOLET_INLINE Vec sub(Vec a, Vec b) { return a - b; }
TRIOLET_INLINE Vec mul(Vec a, Vec b) { return a * b; }
TRIOLET_INLINE Vec div(Vec a, Vec b) { return a / b; }
TRIOLET_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
TRIOLET_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
TRIOLET_INLINE void store(bf16* target, Vec value) {
    for (int lane = 0; lane < kLanes; ++lane) put(target + lane, value[lane]);
}
// For values that a bfloat16 has the digits for.
TRIOLET_INLINE void store_exact(bf16* target, Vec value) {
    Halves halves = __builtin_convertvector((Words)value >> 16, Halves);
    memcpy(target, &halves, sizeof halves);
}
TRIOLET_INLINE float sum_lanes(Vec a) {
    float half[kLanes / 2];
    for (int lane = 0; lane < kLanes / 2; ++lane) half[lane] = a[lane] + a[lane + kLanes / 2];
    for (int width = kLanes / 4; width; width /= 2)
        for (int lane = 0; lane < width; ++lane) half[lane] += half[lane + width];
    return half[0];
}
TRIOLET_INLINE float max_lanes(Vec a) {
    float result = a[0];
    for (int lane = 1; lane < kLanes; ++lane) result = a[lane] > result ? a[lane] : result;
    return result;
}
TRIOLET_INLINE Vec zero_below(Vec value, Vec test, float limit) { return test < splat(limit) ? splat(0) : value; }
TRIOLET_INLINE Vec keep_lanes(Vec value, int first, int end, float other) {
    Vec lane = lane_numbers();
    Vec kept = lane >= splat(float(first)) ? value : splat(other);
    return lane < splat(float(end)) ? kept : splat(other);
}
TRIOLET_INLINE Vec keep_bits(Vec value, uint32_t bits, float other) {
    Lanes own_bit;
    for (int lane = 0; lane < kLanes; ++lane) own_bit[lane] = 1 << lane;
    return (own_bit & int32_t(bits)) != 0 ? value : splat(other);
}
TRIOLET_INLINE Vec add_exponent(Vec value, Vec shifted) { return (Vec)((Lanes)value + ((Lanes)shifted << 23)); }
TRIOLET_INLINE BfPairs load_pairs(const bf16* source) {
    Lanes bits;
    memcpy(&bits, source, sizeof bits);
    return {(Vec)(bits << 16), (Vec)(bits & int32_t(0xffff0000))};
}
TRIOLET_INLINE BfPairs splat_pair(const bf16* source) {
    return {splat(to_float(source[0])), splat(to_float(source[1]))};
}
TRIOLET_INLINE BfPairs first_of_pairs(BfPairs pairs) { return {pairs.first, splat(0)}; }
TRIOLET_INLINE void store_in_pairs(bf16* pairs, const bf16* source, int place) {
    for (int i = 0; i < kLanes; ++i) pairs[2 * i + place] = source[i];
}
TRIOLET_INLINE Vec dot(Vec sum, BfPairs a, BfPairs b) { return fma(a.second, b.second, fma(a.first, b.first, sum)); }

#endif

TRIOLET_INLINE void store_exact(float* target, Vec value) { store(target, value); }
TRIOLET_INLINE Vec load_pairs(const float* source) { return load(source); }
TRIOLET_INLINE Vec splat_pair(const float* source) { return splat(*source); }
TRIOLET_INLINE Vec dot(Vec sum, Vec a, Vec b) { return fma(a, b, sum); }

// 2 to the power of x for x in [-126, 127], clamped outside; exactly 1 at 0. Relative error below 2e-7. A NaN stays one:
// of operands that cannot be compared min and max return the second.
TRIOLET_INLINE Vec exp2(Vec x) {
    x = min(splat(127.0f), max(splat(-126.0f), x));
    Vec shifted = add(x, splat(12582912.0f));  // 1.5 × 2^23: the nearest integer moves to the low bits
    Vec f = sub(x, sub(shifted, splat(12582912.0f)));
    Vec sum = splat(1.5403530e-4f);
    sum = fma(sum, f, splat(1.3333558e-3f));
    sum = fma(sum, f, splat(9.6181291e-3f));
    sum = fma(sum, f, splat(5.5504109e-2f));
    sum = fma(sum, f, splat(2.4022651e-1f));
    sum = fma(sum, f, splat(6.9314718e-1f));
    sum = fma(sum, f, splat(1.0f));
    return add_exponent(sum, shifted);
}

}  // namespace
