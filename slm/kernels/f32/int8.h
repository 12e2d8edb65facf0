// Products in integers of 8 bits, for AVX512-VNNI and AVX-VNNI: they multiply four of them, and add, twice as fast as
// pairs of 16 bits.
//
// Each row of A and each column of B has one scale, which maps the largest magnitude in it to MOST. A layer's values keep
// about seven bits, as many as bf16. Probabilities must not be stored this way: many small ones matter next to a large
// one, and a token less likely than 1 / 254 would round to zero.
//
// The instruction's first factor is unsigned. A is stored with an offset of 128, and accumulators start at minus the
// offset's contribution: -128 times the sum of B's column. A non-finite value makes its scale NaN, and every result with
// it.
#pragma once
#include "values.h"

static_assert(W == 8 || W == 16, "these products are written for AVX-VNNI and AVX512-VNNI");

constexpr long UNIT = 4;  // values in 32 bits
constexpr float MOST = 127.0f;
constexpr int32_t BITS = 0xff, OFFSET = (int32_t)0x80808080;  // 128 more for each of four
constexpr long STEPS = 8;  // units of a tile between two calls of `ahead`: the same number of values as in int16.h

// For each width: W whole numbers as integers of 8 bits, in their order; sum + four x times the four y, which have no sign.
#if SLM_LANES == 16

INLINE void store_quads(int32_t* p, ivec x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)x)); }
INLINE ivec multiply_add(ivec sum, ivec x, int32_t y) {
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)all(y), (__m512i)x);
}

#else

INLINE void store_quads(int32_t* p, ivec x) {
    const __m256i words = _mm256_packs_epi32((__m256i)x, (__m256i)x), bytes = _mm256_packs_epi16(words, words);
    p[0] = _mm256_extract_epi32(bytes, 0);
    p[1] = _mm256_extract_epi32(bytes, 4);
}
INLINE ivec multiply_add(ivec sum, ivec x, int32_t y) {
    return (ivec)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)all(y), (__m256i)x);
}

#endif

// The largest size of values that are taken one after the other, or NaN where one is not finite.
struct Sizes {
    vec size = {}, nothing = {};

    INLINE void take(vec x) {
        size = max_of(size, (vec)((ivec)x & 0x7fffffff));
        nothing += x * 0.0f;
    }
    INLINE vec of_columns() const { return size + nothing; }
    INLINE static float of_row(Sizes a, Sizes b) { return max_lane(max_of(a.size, b.size)) + sum_of(a.nothing + b.nothing); }
};

INLINE void store_units(int32_t* out, ivec left, ivec right) {
    store_quads(out, left);
    store_quads(out + W / UNIT, right);
}
// Adds the values of W columns' units to `sums`.
INLINE void add_values(ivec& sums, ivec units) { sums = multiply_add(sums, units, 0x01010101); }
