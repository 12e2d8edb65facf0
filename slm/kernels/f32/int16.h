// Products in integers of 16 bits, for AVX2, AVX-VNNI and AVX512-VNNI: they multiply pairs of them, and add, 1.6 times
// (AVX2) and twice (VNNI) as fast as single f32.
//
// Each row of A, and each column of B, becomes integers by a scale of its own: the values that one sum goes over have
// LENGTH as their length (the root of the sum of their squares). By Cauchy and Schwarz no sum of products, and no part of
// one, then exceeds LENGTH^2, so that 32 bits hold it, whatever the values are. Of 256 like ones each has 11 bits and a
// sign: eight times as fine as bf16. A value that is not finite makes its scale NaN, and with it every result.
//
// Pairs lie in the same places as f32 values would, and need half of them; the scales of a block's NR columns follow.
#pragma once
#include "values.h"

static_assert(W == 8 || W == 16, "these products are written for AVX2 and AVX512-VNNI");

constexpr long UNIT = 2;           // values in 32 bits
constexpr float MOST = 32767.0f;   // LENGTH
constexpr int32_t BITS = 0xffff, OFFSET = 0;
constexpr long STEPS = W;          // units of a tile between two calls of `ahead`

// For each width: two vectors of whole numbers as 2 W integers of 16 bits, in their order; sum + pairs x times the pair y.
#if SLM_LANES == 16

INLINE ivec in_order(ivec low, ivec high) {
    return (ivec)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32((__m512i)low, (__m512i)high));
}
INLINE ivec multiply_add(ivec sum, ivec x, int32_t y) {
    return (ivec)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)all(y), (__m512i)x);
}

#else

INLINE ivec in_order(ivec low, ivec high) {
    return (ivec)_mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)low, (__m256i)high), 0xd8);
}

#ifdef __AVXVNNI__

INLINE ivec multiply_add(ivec sum, ivec x, int32_t y) {
    return (ivec)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)all(y), (__m256i)x);
}

#else

// c0 += a . b0, c1 += a . b1, in one piece, because GCC would do all products of a step first and find no registers for them.
INLINE void multiply_add(ivec& c0, ivec& c1, const int32_t& a, ivec b0, ivec b1) {
    ivec x, y;
    asm volatile inline(
        "vpbroadcastd %4, %2\n\t"
        "vpmaddwd %5, %2, %3\n\t"
        "vpmaddwd %6, %2, %2\n\t"
        "vpaddd %3, %0, %0\n\t"
        "vpaddd %2, %1, %1"
        : "+x"(c0), "+x"(c1), "=&x"(x), "=&x"(y)
        : "m"(a), "x"(b0), "x"(b1));
}

#endif

#endif

INLINE void store_units(int32_t* out, ivec left, ivec right) { *(ivec_anywhere*)out = in_order(left, right); }

// The length of values that are taken one after the other.
struct Sizes {
    vec squares = {};

    INLINE void take(vec x) { squares += x * x; }
    INLINE vec of_columns() const { return root(squares); }
    INLINE static float of_row(Sizes a, Sizes b) { return std::sqrt(sum_of(a.squares + b.squares)); }
};
INLINE void add_values(ivec&, ivec) {}
