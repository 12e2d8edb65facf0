// bf16 in AVX-512: conversions, the exponential, and the one matrix micro-kernel that everything here is built on.
//
// A matrix product reduces over pairs: `vdpbf16ps` multiplies two bf16 of one operand with two of the other and adds
// both products to an f32 lane. A "pair" is therefore two bf16 that follow each other along the reduced dimension.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

using bf16 = uint16_t;
using pair_t = uint32_t;

constexpr long MR = 8;   // rows of a tile; more would share too few sets of the first cache when rows are 2^n apart
constexpr long NR = 32;  // columns of a tile, and the width of a packed panel

#define INLINE inline __attribute__((always_inline))

INLINE long ceil_div(long a, long b) { return (a + b - 1) / b; }
INLINE long min_of(long a, long b) { return a < b ? a : b; }
INLINE long max_of(long a, long b) { return a > b ? a : b; }

INLINE __m512 load_bf16(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
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

// e^x to f32 precision for x up to 88; x below -87 gives 0 (Cody-Waite reduction, degree-6 polynomial).
INLINE __m512 exp512(__m512 x) {
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0x08);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.3981999e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665796e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666666e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    const __mmask16 alive = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GE_OQ);
    return _mm512_maskz_scalef_ps(alive, p, n);
}
INLINE __m512 sigmoid512(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    return _mm512_div_ps(one, _mm512_add_ps(one, exp512(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

// c[r] += sum over k of a(r, k) * b(k): R rows of 32 columns. a(r, k) is the pair at A[r * ra + k * ka], b(k) the 32
// pairs at B[32 k]. Row-major rows of bf16 are (ra = row length / 2, ka = 1), interleaved rows (ra = 1, ka = stride).
template <int R>
INLINE void accumulate(long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, __m512 (&c)[R][2]) {
    for (long k = 0; k < n_pairs; k++, A += ka, B += NR) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(B), b1 = (__m512bh)_mm512_loadu_si512(B + 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m512bh a = (__m512bh)_mm512_set1_epi32((int)A[r * ra]);
            c[r][0] = _mm512_dpbf16_ps(c[r][0], a, b0);
            c[r][1] = _mm512_dpbf16_ps(c[r][1], a, b1);
        }
    }
}

// One tile of R rows, handed row by row to `use(row, left 16 columns, right 16 columns)`.
template <int R, class Use>
INLINE void tile_of(long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, Use&& use) {
    __m512 c[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
    accumulate<R>(n_pairs, A, ra, ka, B, c);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) use(r, c[r][0], c[r][1]);
}

// A tile of 1 to 8 rows.
template <class Use>
INLINE void tile(long rows, long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, Use&& use) {
    if (rows >= MR) return tile_of<MR>(n_pairs, A, ra, ka, B, use);
    long done = 0;
    for (; rows - done >= 4; done += 4)
        tile_of<4>(n_pairs, A + done * ra, ra, ka, B, [&](int r, __m512 x, __m512 y) { use((int)(r + done), x, y); });
    for (; done < rows; done++)
        tile_of<1>(n_pairs, A + done * ra, ra, ka, B, [&](int r, __m512 x, __m512 y) { use((int)(r + done), x, y); });
}
