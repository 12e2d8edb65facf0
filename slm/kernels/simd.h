// bf16 in AVX-512: conversions, the exponential, and the one matrix micro-kernel that everything here is built on.
//
// A matrix product reduces over pairs: `vdpbf16ps` multiplies two bf16 of one operand with two of the other and adds
// both products to an f32 lane. A "pair" is therefore two bf16 that follow each other along the reduced dimension.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "sizes.h"

using bf16 = uint16_t;
using pair_t = uint32_t;

// For lambdas that only prefetch: GCC drops calls of a function without effects before it inlines them.
#define ALWAYS __attribute__((always_inline))

INLINE __m512 load_bf16(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
// 32 columns at once: one cache line.
INLINE void store_bf16(bf16* p, __m512 left, __m512 right) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(right, left));
}
INLINE void store_bf16(bf16* p, __m512 x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
INLINE float to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
INLINE bf16 to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Lanes of two f32 rows as pairs: low half from `even`, high half from `odd`.
INLINE __m512i interleave(__m512 even, __m512 odd) {
    __m512i lo = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    __m512i hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd)), 16);
    return _mm512_or_si512(lo, hi);
}

// 2^x to f32 precision for x up to 127; x below -149 gives 0, -inf included (degree-6 polynomial).
INLINE __m512 exp2_512(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-151.0f));
    const __m512 n = _mm512_roundscale_ps(x, 0x08), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}
constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// 1 / x to f32 precision: the processor's estimate (14 bits) and one Newton step; faster than a division.
INLINE __m512 reciprocal512(__m512 x) {
    const __m512 y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.0f)));
}
// For x below -88 the true value is below 1e-38 and this gives about that.
INLINE __m512 sigmoid512(__m512 x) {
    const __m512 y = _mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E)), _mm512_set1_ps(126.0f));
    return reciprocal512(_mm512_add_ps(_mm512_set1_ps(1.0f), exp2_512(y)));
}

// What a product may ask memory for while it runs: called with 0, 1, 2, ... after every 16 pairs.
struct Nothing {
    INLINE void operator()(long) const {}
};

// Ask for a cache line: into the second cache, or the first one. No address is wrong here, outside of any memory either.
INLINE void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }
INLINE void will_read(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
INLINE void will_write(void* p) { __builtin_prefetch(p, 1, 3); }

// c[r] += sum over k of a(r, k) * b(k): R rows of 32 columns. a(r, k) is the pair at A[r * ra + k * ka], b(k) the 32
// pairs at B[32 k]. Row-major rows of bf16 are (ra = row length / 2, ka = 1), interleaved rows (ra = 1, ka = stride).
template <int R, class Ahead>
INLINE void accumulate(long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, __m512 (&c)[R][2], Ahead&& ahead) {
    auto step = [&] {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(B), b1 = (__m512bh)_mm512_loadu_si512(B + 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m512bh a = (__m512bh)_mm512_set1_epi32((int)A[r * ra]);
            c[r][0] = _mm512_dpbf16_ps(c[r][0], a, b0);
            c[r][1] = _mm512_dpbf16_ps(c[r][1], a, b1);
        }
        A += ka;
        B += NR;
    };
    for (long part = 0; part < n_pairs / 16; part++) {
        ahead(part);
        for (int i = 0; i < 16; i++) step();
    }
    for (long i = 0; i < n_pairs % 16; i++) step();
}

// One tile of R rows, handed row by row to `use(row, left 16 columns, right 16 columns)`.
template <int R, class Use, class Ahead = Nothing>
INLINE void tile_of(long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, Use&& use, Ahead&& ahead = {}) {
    __m512 c[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
    accumulate<R>(n_pairs, A, ra, ka, B, c, ahead);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) use(r, c[r][0], c[r][1]);
}

// A tile of 1 to 8 rows.
template <class Use, class Ahead = Nothing>
INLINE void tile(long rows, long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, Use&& use, Ahead&& ahead = {}) {
    if (rows >= MR) return tile_of<MR>(n_pairs, A, ra, ka, B, use, ahead);
    long done = 0;
    for (; rows - done >= 4; done += 4)
        tile_of<4>(n_pairs, A + done * ra, ra, ka, B, [&](int r, __m512 x, __m512 y) { use((int)(r + done), x, y); });
    for (; done < rows; done++)
        tile_of<1>(n_pairs, A + done * ra, ra, ka, B, [&](int r, __m512 x, __m512 y) { use((int)(r + done), x, y); });
}
