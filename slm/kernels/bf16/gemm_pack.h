// Operands of matrix products, laid out as pairs.
//
// A matrix product reduces over pairs: the instructions multiply two bf16 of one operand with two of the other and add
// both products to an f32 sum. A "pair" is therefore two bf16 that follow each other along the reduced dimension.
#pragma once
#include "values.h"

constexpr long AHEAD = 32;  // rows that packing asks for in advance: they are a page or more apart

// Columns [first, first + 16) of two bf16 rows as 16 pairs; `second` may be null (a missing odd row counts as zero).
INLINE __m512i pairs16(const bf16* even, const bf16* odd) {
    __m512i lo = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
    if (!odd) return lo;
    return _mm512_or_si512(lo, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd)), 16));
}

// 32 columns of rows [0, rows) of a bf16 matrix as one panel of pairs along the rows: out [ceil(rows / 2)][32].
INLINE void pack_rows(const bf16* from, long ld, long rows, pair_t* out) {
    for (long i = 0; i < rows; i += 2) {
        const bf16 *even = from + i * ld, *odd = i + 1 < rows ? even + ld : nullptr;
        prefetch_far(even + AHEAD * ld);
        prefetch_far(even + (AHEAD + 1) * ld);
        for (int c = 0; c < NR; c += 16)
            _mm512_storeu_si512(out + i / 2 * NR + c, pairs16(even + c, odd ? odd + c : nullptr));
    }
}

// 16 x 16 transposition of 32-bit lanes.
INLINE void transpose16(__m512i (&r)[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

// Up to 16 rows of bf16 (row i at from + i * ld, `cols` values, a multiple of 32) as columns of pairs along the row:
// out[k * stride + i] is the pair (from[i][2k], from[i][2k + 1]); missing rows are zero.
INLINE void pack_columns16(const bf16* from, long ld, long rows, long cols, pair_t* out, long stride) {
    for (long c = 0; c < cols; c += 32) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) r[i] = i < rows ? _mm512_loadu_si512(from + i * ld + c) : _mm512_setzero_si512();
        transpose16(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) _mm512_storeu_si512(out + (c / 2 + i) * stride, r[i]);
    }
}
