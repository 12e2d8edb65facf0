// The operands of products in bf16, packed in pairs, over one of two instruction sets: AMX (tile_amx.h) or AVX512-BF16
// (tile_avx512.h). Both have the same names as f32/operands.h with tile.h.
#pragma once
#include "values.h"

constexpr long AHEAD = 32;  // rows that packing asks for in advance: they are a page or more apart

// LANES columns of two rows as pairs; `odd` may be null (a missing odd row counts as zero).
INLINE __m512i pairs_of_rows(const bf16* even, const bf16* odd) {
    return interleave(_mm256_loadu_si256((const __m256i*)even), odd ? _mm256_loadu_si256((const __m256i*)odd) : __m256i{});
}

// NR columns of rows [0, rows) of a matrix as one panel of pairs along the rows: out [ceil(rows / 2)][NR].
INLINE void pack_rows(const bf16* from, long ld, long rows, pair_t* out) {
    for (long i = 0; i < rows; i += 2) {
        const bf16 *even = from + i * ld, *odd = i + 1 < rows ? even + ld : nullptr;
        prefetch_far(even + AHEAD * ld);
        prefetch_far(even + (AHEAD + 1) * ld);
        for (long c = 0; c < NR; c += LANES)
            _mm512_storeu_si512(out + i / 2 * NR + c, pairs_of_rows(even + c, odd ? odd + c : nullptr));
    }
}

#ifdef SLM_AMX
#include "tile_amx.h"
#else
#include "tile_avx512.h"
#endif

constexpr long VALUE_BYTES = 2;
constexpr long STRIPS = 96 / MR;                     // strips of MR rows in a task, at most
constexpr long GRADIENT_STRIPS = ceil_div(48, MR);   // in one of a weight's gradient

// Values of the reduced dimension that a task takes at once: all, but in the head's backward product.
INLINE long block_of(long depth) { return depth; }
INLINE long head_block(long words) { return min_of(words, 2048); }

// Rows of f32, LANES rows and NR columns at a time, to pairs along the row.
INLINE void pack_weight(const float* from, long depth, pair_t* out) {
    for (long c = 0; c < depth; c += NR) {
        vec block[W];
        unrolled<W>([&](auto r) ALWAYS {
            block[r] = (vec)both_values(load(from + r * depth + c), load(from + r * depth + c + LANES));
        });
        transpose(block);
        unrolled<W>([&](auto r) ALWAYS { _mm512_storeu_si512(out + (c / 2 + r) * NR, (__m512i)block[r]); });
    }
}
// NR columns of f32 in `rows` rows, an even number, to pairs along the rows.
INLINE void pack_weight_rows(const float* from, long ld, long rows, pair_t* out) {
    for (long i = 0; i < rows; i += 2)
        for (long c = 0; c < NR; c += LANES)
            store_packed(out + i / 2 * NR + c, {load(from + i * ld + c), load(from + (i + 1) * ld + c)});
}

// Strips of dy [rows, n], panels of x [rows, k], by rows, so that memory is read in the order in which it lies. A worksharing
// loop.
INLINE void pack_for_gradient(const bf16* dy, long ldy, long n, const bf16* x, long ldx, long k, long rows, long apart,
                              pair_t* packed_dy, pair_t* packed_x) {
    constexpr long AT_ONCE = 32;  // positions: a group of AMX's pairs
    const long n_pairs = pairs_of(rows);
    const auto will_read_rows = [](const bf16* from, long ld, long count) ALWAYS {
        for (long r = 0; r < count; r++) will_read(from + r * ld);
    };
#pragma omp for schedule(static)
    for (long i = 0; i < 2 * n_pairs; i += AT_ONCE) {
        const long here = min_of(AT_ONCE, rows - i), filled = ceil_div(here, 2);
        const long all = min_of(AT_ONCE / 2, n_pairs - i / 2);  // pairs, with those that fill up
        for (long c = 0; c < k; c += NR) {
            const bf16* from = x + i * ldx + c;
            pair_t* panel = packed_x + c * apart + i / 2 * NR;
            will_read_rows(from + 2 * NR, ldx, here);
            pack_rows(from, ldx, here, panel);
            memset(panel + filled * NR, 0, (all - filled) * NR * sizeof(pair_t));
        }
        for (long q = 0; q < n; q += NR) {
            const bf16* from = dy + i * ldy + q;
            will_read_rows(from + 2 * NR, ldy, here);
            pack_left(from, ldy, here, min_of(NR, n - q), packed_dy + q * apart, i / 2, apart);
        }
    }
}
