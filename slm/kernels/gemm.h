// Matrix products over packed operands. Work is cut into tasks that any thread may take: each output element is made by
// one task in one order, so results do not depend on the number of threads or on who takes what.
#pragma once
#include <omp.h>

#include "simd.h"

constexpr long L2_BYTES = 448 * 1024;  // packed panels that a task keeps in its core's second-level cache
constexpr long STRIPS = 12;            // strips of 8 rows in a task

// A [rows, 2 n_pairs] bf16, row-major with `lda` values per row; B packed [panels][n_pairs][32]. Calls
// use(row, panel, left 16, right 16) once for each row and panel of A B, and touch(row, panel) some time before, to ask
// memory for what `use` will need. Inside a parallel region: a worksharing loop.
template <class Use, class Touch>
INLINE void gemm_loop(const bf16* A, long lda, long rows, const pair_t* B, long n_pairs, long panels, Use&& use,
                      Touch&& touch) {
    const long strips = ceil_div(rows, MR), chunks = ceil_div(strips, STRIPS);
    const long group = max_of(1, min_of(panels, L2_BYTES / (n_pairs * NR * (long)sizeof(pair_t))));
    const long groups = ceil_div(panels, group);
#pragma omp for schedule(dynamic)
    for (long task = 0; task < groups * chunks; task++) {
        const long first = task / chunks * group, last = min_of(panels, first + group), strip = task % chunks * STRIPS;
        for (long s = strip; s < min_of(strips, strip + STRIPS); s++) {
            const long row = s * MR, n = min_of(MR, rows - row);
            const bf16* a = A + row * lda;
            for (long p = first; p < last; p++) {
                // The next strip's rows come in evenly while this strip meets its panels.
                const long from = (p - first) * MR / (last - first), to = (p + 1 - first) * MR / (last - first);
                tile(n, n_pairs, (const pair_t*)a, lda / 2, 1, B + p * n_pairs * NR,
                     [&](int r, __m512 x, __m512 y) { use(row + r, p, x, y); },
                     [&](long part) ALWAYS {
                         for (long r = from; r < to; r++)
                             prefetch_far(a + (MR + r) * lda + part * 32);
                         if (part < MR) touch(row + part, p);
                     });
            }
        }
    }
}

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

// 32 (or 16) columns of rows [0, rows) as strips of 8 pairs along the rows: out [columns / 8][`strip` pairs apart][..][8].
INLINE void pack_strips(const bf16* from, long ld, long rows, long columns, pair_t* out, long strip) {
    for (long i = 0; i < rows; i += 2) {
        const bf16 *even = from + i * ld, *odd = i + 1 < rows ? even + ld : nullptr;
        prefetch_far(even + AHEAD * ld);
        prefetch_far(even + (AHEAD + 1) * ld);
        for (long c = 0; c < columns; c += 16) {
            const __m512i both = pairs16(even + c, odd ? odd + c : nullptr);
            pair_t* o = out + c / MR * strip + i / 2 * MR;
            _mm256_storeu_si256((__m256i*)o, _mm512_castsi512_si256(both));
            _mm256_storeu_si256((__m256i*)(o + strip), _mm512_extracti64x4_epi64(both, 1));
        }
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
