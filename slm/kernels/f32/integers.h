// What products in integers of 16 and of 8 bits share.
#pragma once
#include <immintrin.h>

#include "tile.h"

// For each width: whole numbers; the first `count` of W values, the others zero.
#if SLM_LANES == 16

INLINE ivec rounded(vec x) { return (ivec)_mm512_cvtps_epi32(x); }
INLINE vec load_first(const float* p, long count) { return _mm512_maskz_loadu_ps((1u << count) - 1, p); }

#else

INLINE ivec rounded(vec x) { return (ivec)_mm256_cvtps_epi32(x); }
INLINE vec load_first(const float* p, long count) {
    ivec own;
    for (int i = 0; i < W; i++) own[i] = i < count ? -1 : 0;
    return _mm256_maskload_ps(p, (__m256i)own);
}

#endif
