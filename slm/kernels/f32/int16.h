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
#include "integers.h"

static_assert(W == 8 || W == 16, "these products are written for AVX2 and AVX512-VNNI");

constexpr long UNIT = 2;  // values in 32 bits
constexpr float LENGTH = 32767.0f;

// For each width: roots; two vectors of whole numbers as 2 W integers of 16 bits, in their order; and c0 += a . b0,
// c1 += a . b1, which is the pair a with W pairs each.
#if SLM_LANES == 16

INLINE vec root(vec x) { return _mm512_sqrt_ps(x); }
INLINE ivec in_order(ivec low, ivec high) {
    return (ivec)_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packs_epi32((__m512i)low, (__m512i)high));
}

INLINE void multiply_add(ivec& c0, ivec& c1, const int32_t& a, ivec b0, ivec b1) {
    const __m512i both = _mm512_set1_epi32(a);
    c0 = (ivec)_mm512_dpwssd_epi32((__m512i)c0, both, (__m512i)b0);
    c1 = (ivec)_mm512_dpwssd_epi32((__m512i)c1, both, (__m512i)b1);
}

#else

INLINE vec root(vec x) { return _mm256_sqrt_ps(x); }
INLINE ivec in_order(ivec low, ivec high) {
    return (ivec)_mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)low, (__m256i)high), 0xd8);
}

#ifdef __AVXVNNI__

INLINE void multiply_add(ivec& c0, ivec& c1, const int32_t& a, ivec b0, ivec b1) {
    const __m256i both = _mm256_set1_epi32(a);
    c0 = (ivec)_mm256_dpwssd_avx_epi32((__m256i)c0, both, (__m256i)b0);
    c1 = (ivec)_mm256_dpwssd_avx_epi32((__m256i)c1, both, (__m256i)b1);
}

#else

// In one piece, because GCC would do all products of a step first and find no registers for them.
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

// What values are multiplied by, and what brings a product back.
INLINE vec scale_to(vec squares) {
    const vec length = root(squares);
    return choose(length > 0.0f, LENGTH / length, vec{});
}
INLINE vec scale_back(vec squares) { return root(squares) * (1.0f / LENGTH); }

INLINE ivec pair_of(vec low, vec high) { return (rounded(low) & 0xffff) | (rounded(high) << 16); }

constexpr long STEPS = W;  // units of a tile between two calls of `ahead`

// What sums of W columns begin with.
INLINE ivec beginning(const float*) { return ivec{}; }

// A row of A, `depth` values (a multiple of 2 W), as pairs; returns the scale that brings products back.
INLINE float units_of_row(const float* from, long depth, int32_t* out) {
    vec a = {}, b = {};
    for (long k = 0; k < depth; k += 2 * W) {
        a += load(from + k) * load(from + k);
        b += load(from + k + W) * load(from + k + W);
    }
    const float length = std::sqrt(sum_of(a + b)), scale = length > 0 ? LENGTH / length : 0.0f;
    for (long k = 0; k < depth; k += 2 * W) {
        *(ivec_anywhere*)(out + k / 2) = in_order(rounded(load(from + k) * scale), rounded(load(from + k + W) * scale));
    }
    return length * (1.0f / LENGTH);
}

// A row of a weight as a column of B: `units` gets its pairs, `ends` the scale that follows them.
INLINE void units_of_column(const float* from, long depth, int32_t* units, float* ends) {
    *ends = units_of_row(from, depth, units);
}

// `rows` rows of G times W columns, the W of group g in row i at(i, g), as pairs of rows: out[g * apart + i / 2 * stride +
// column] and, at the end of each group, its columns' scales. OF_B: columns of B; else rows of A, which are the same here.
template <int G, bool OF_B, class At> INLINE void units_of_columns(long rows, At&& at, int32_t* out, long stride, long apart) {
    vec squares[G], to[G];
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) squares[g] = vec{};
    for (long i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) {
            const vec x = at(i, g);
            squares[g] += x * x;
        }
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) to[g] = scale_to(squares[g]);
    for (long i = 0; i + 1 < rows; i += 2, out += stride)
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) *(ivec_anywhere*)(out + g * apart) = pair_of(at(i, g) * to[g], at(i + 1, g) * to[g]);
    if (rows % 2) {
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) *(ivec_anywhere*)(out + g * apart) = pair_of(at(rows - 1, g) * to[g], vec{});
        out += stride;
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) store((float*)out + g * apart, scale_back(squares[g]));
}
