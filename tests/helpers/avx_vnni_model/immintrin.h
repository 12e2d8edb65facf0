// AVX-VNNI's sums of products by AVX2's instructions, to test the kernels that use it on processors that lack it: the same
// results. Put this folder before the compiler's own headers (-I).
#pragma once
#include_next <immintrin.h>

#define __AVXVNNI__ 1
#define _mm256_dpwssd_avx_epi32(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))

// Four integers of 8 bits each, those of `a` without a sign: the even ones and the odd ones as pairs of 16 bits.
static inline __attribute__((always_inline)) __m256i four_products(__m256i sum, __m256i a, __m256i b) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8))));
}
#define _mm256_dpbusd_avx_epi32 four_products
