// The products of AVX512-BF16: tiles of 8 rows and 32 columns in 16 registers (tile.h).
#pragma once

INLINE vec multiply_add(vec sums, ivec pairs, int32_t pair) {
    return _mm512_dpbf16_ps(sums, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)pairs);
}

#include "../tile.h"

constexpr long L2_BYTES = 448 * 1024;  // packed panels that a task keeps in its core's second-level cache

// Pairs of a product whose reduced dimension has `count` values.
INLINE constexpr long pairs_of(long count) { return ceil_div(count, 2); }

// A block of rows of 32 (or 16) columns as strips of 8 pairs along the rows, at `pair` of the n_pairs of
// out [columns / 8][n_pairs][8].
INLINE void pack_left(const bf16* from, long ld, long rows, long columns, pair_t* out, long pair, long n_pairs) {
    const long strip = n_pairs * MR;
    for (long i = 0; i < rows; i += 2) {
        const bf16 *even = from + i * ld, *odd = i + 1 < rows ? even + ld : nullptr;
        for (long c = 0; c < columns; c += LANES) {
            const __m512i both = pairs_of_rows(even + c, odd ? odd + c : nullptr);
            pair_t* o = out + c / MR * strip + (pair + i / 2) * MR;
            _mm256_storeu_si256((__m256i*)o, _mm512_castsi512_si256(both));
            _mm256_storeu_si256((__m256i*)(o + strip), _mm512_extracti64x4_epi64(both, 1));
        }
    }
}

// A whole strip that pack_left has laid out, times a panel of x: sums over `count` positions.
template <class Use, class Ahead>
INLINE void gradient_tile(long, long count, const pair_t* dy, const pair_t* x, Use&& use, Ahead&& ahead, bool, float*, long) {
    tile(MR, pairs_of(count), dy, 1, MR, x, use, ahead);
}
