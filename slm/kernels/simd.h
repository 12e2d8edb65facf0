// bf16 in AVX-512: conversions, the exponential, prefetches.
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

// 2^x to f32 precision for x up to 127 (degree-6 polynomial); 0 below -126, -inf included. Results that are not normal
// numbers are masked out, since Intel's processors take over a hundred cycles for each vector that has one.
INLINE __m512 exp2_512(__m512 x) {
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);  // or not a number, which stays
    const __m512 n = _mm512_roundscale_ps(x, 0x08), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.5403530e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3333558e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(normal, p, n);
}
constexpr float LOG2_E = 1.44269504f;

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

// The activation f(x) = x sigmoid(z(x)) of a gated feed-forward, and its slope: SiLU with z = x, or GELU's tanh form with
// z = 2 c (x + 0.044715 x^3), c = sqrt(2 / pi).
struct Activation {
    __m512 value, slope;
};
template <bool GELU> INLINE Activation activation512(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    if constexpr (GELU) {
        const __m512 square = _mm512_mul_ps(x, x), two_c = _mm512_set1_ps(1.5957691216f);
        const __m512 s = sigmoid512(_mm512_mul_ps(x, _mm512_fmadd_ps(square, _mm512_set1_ps(0.0713548163f), two_c)));
        const __m512 dz = _mm512_fmadd_ps(square, _mm512_set1_ps(0.2140644489f), two_c);
        const __m512 rest = _mm512_mul_ps(x, _mm512_sub_ps(one, s));
        return {_mm512_mul_ps(x, s), _mm512_mul_ps(s, _mm512_fmadd_ps(rest, dz, one))};
    } else {
        const __m512 s = sigmoid512(x);
        return {_mm512_mul_ps(x, s), _mm512_mul_ps(s, _mm512_fmadd_ps(x, _mm512_sub_ps(one, s), one))};
    }
}

// Ask for a cache line: into the second cache, or the first one. No address is wrong here, outside of any memory either.
INLINE void prefetch_far(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }
INLINE void will_read(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
INLINE void will_write(void* p) { __builtin_prefetch(p, 1, 3); }
