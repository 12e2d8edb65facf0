// AVX-VNNI's sum of products by AVX2's instructions, to test the kernels that use it on processors that lack it: the same
// results. Put this folder before the compiler's own headers (-I).
#pragma once
#include_next <immintrin.h>

#define __AVXVNNI__ 1
#define _mm256_dpwssd_avx_epi32(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
