// bf16 in AVX-512: conversions and the exponential.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "sizes.h"

using bf16 = value;
using pair_t = packed;
using lanes = __m512;
constexpr long LANES = 16;

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

INLINE lanes all(float x) { return _mm512_set1_ps(x); }
INLINE lanes min_of(lanes a, lanes b) { return _mm512_min_ps(a, b); }
INLINE lanes max_of(lanes a, lanes b) { return _mm512_max_ps(a, b); }
INLINE float sum_of(lanes x) { return _mm512_reduce_add_ps(x); }
INLINE float max_lane(lanes x) { return _mm512_reduce_max_ps(x); }
// 1 / x to f32 precision: the processor's estimate (14 bits) and one Newton step; faster than a division.
INLINE lanes reciprocal(lanes x) {
    const lanes y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.0f)));
}

// What bodies for all number formats call loads and stores (family.h).
INLINE lanes load_value(const value* p) { return load_bf16(p); }
INLINE lanes load_f32(const float* p) { return _mm512_loadu_ps(p); }
INLINE void store_value(value* p, lanes x) { store_bf16(p, x); }
INLINE void store_f32(float* p, lanes x) { _mm512_storeu_ps(p, x); }
// Two vectors, one behind the other.
INLINE void store_values(value* p, lanes left, lanes right) { store_bf16(p, left, right); }
INLINE value value_of(float x) { return to_bf16(x); }

// Logits lie where their gradient follows, as f16, which has three bits more of precision than bf16.
INLINE lanes load_logits(const value* z) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)z)); }
INLINE float logit_at(const value* z) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(*z))); }
INLINE void store_logits(value* z, lanes left, lanes right) {
    _mm256_storeu_si256((__m256i*)z, _mm512_cvtps_ph(left, 0));
    _mm256_storeu_si256((__m256i*)z + 1, _mm512_cvtps_ph(right, 0));
}

#include "../activation.h"

// 2^x to f32 precision for x up to 127; 0 below -126, -inf included. Results that are not normal numbers are masked out,
// since Intel's processors take over a hundred cycles for each vector that has one.
INLINE lanes exp2_of(lanes x) {
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);  // or not a number, which stays
    const lanes n = _mm512_roundscale_ps(x, 0x08);
    return _mm512_maskz_scalef_ps(normal, exp2_near_zero(x - n), n);
}
