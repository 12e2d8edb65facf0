// bf16 in AVX-512: conversions, pairs and the exponential.
//
// A matrix product reduces over pairs: the instructions multiply two bf16 of one operand with two of the other and add
// both products to an f32 sum. A "pair" is therefore two bf16 that follow each other along the reduced dimension.
#pragma once
#include <immintrin.h>

#include "../f32/vec.h"
#include "sizes.h"

using bf16 = value;
using pair_t = packed;

INLINE lanes load_value(const value* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
INLINE void store_value(value* p, lanes x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
// Two vectors, one behind the other: one cache line.
INLINE __m512i both_values(lanes left, lanes right) { return (__m512i)_mm512_cvtne2ps_pbh(right, left); }
INLINE void store_values(value* p, lanes left, lanes right) { _mm512_storeu_si512(p, both_values(left, right)); }
INLINE value value_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (value)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Lanes of two rows as pairs: low half from `even`, high half from `odd`.
INLINE __m512i interleave(__m256i even, __m256i odd) {
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}
INLINE void store_packed(packed* p, const lanes (&rows)[PAIR]) {
    _mm512_storeu_si512(p, interleave((__m256i)_mm512_cvtneps_pbh(rows[0]), (__m256i)_mm512_cvtneps_pbh(rows[1])));
}

// 1 / x to f32 precision: the processor's estimate (14 bits) and one Newton step; faster than a division.
INLINE lanes reciprocal(lanes x) {
    const lanes y = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.0f)));
}

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
