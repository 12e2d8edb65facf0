// Matrix products over packed operands. Work is cut into tasks that any thread may take: each output element is made by
// one task in one order, so results do not depend on the number of threads or on who takes what.
#pragma once
#include "../tasks.h"
#include "tile.h"

constexpr long STRIPS = 96 / MR;  // strips of MR rows in a task, at most

// A [rows, depth] bf16, row-major with `lda` values per row; B packed [panels][depth / 2][32]. Calls
// use(row, panel, left 16, right 16) once for each row and panel of A B, and touch(row, panel) some time before, to ask
// memory for what `use` will need. Inside a parallel region: a worksharing loop.
template <class Use, class Touch>
INLINE void gemm_loop(Share& share, const bf16* A, long lda, long rows, const pair_t* B, long depth, long panels, Use&& use,
                      Touch&& touch) {
    const long n_pairs = depth / 2;
    const long group = max_of(1, min_of(panels, L2_BYTES / (n_pairs * NR * (long)sizeof(pair_t))));
    const TileUnit unit;
    const long touched = ceil_div(MR, max_of(1, n_pairs / 16));  // rows per call of `touch`'s place in the product
    share.each(ceil_div(panels, group), ceil_div(rows, MR), STRIPS, [&](long column, long strip, long end) ALWAYS {
        const long first = column * group, last = min_of(panels, first + group);
        for (long s = strip; s < end; s++) {
            const long row = s * MR, n = min_of(MR, rows - row);
            const bf16* a = A + row * lda;
            for (long p = first; p < last; p++) {
                // The next strip's rows come in evenly while this strip meets its panels.
                const long from = (p - first) * MR / (last - first), to = (p + 1 - first) * MR / (last - first);
                tile(n, n_pairs, (const pair_t*)a, lda / 2, B + p * n_pairs * NR,
                     [&](int r, __m512 x, __m512 y) { use(row + r, p, x, y); },
                     [&](long part) ALWAYS {
                         for (long r = from; r < to; r++)
                             prefetch_far(a + (MR + r) * lda + part * 32);
                         for (long r = part * touched; r < min_of(MR, (part + 1) * touched); r++) touch(row + r, p);
                     });
            }
        }
    });
}

// The same, with a parallel region of its own.
template <class Use, class Touch>
INLINE void gemm(const bf16* A, long lda, long rows, const pair_t* B, long depth, long panels, Use&& use, Touch&& touch) {
    in_parallel([&](Share& share) {
        gemm_loop(share, A, lda, rows, B, depth, panels, use, touch);
    });
}

// One tile of up to MR rows of `depth` values, `lda` values from row to row, times a panel.
template <class Use> INLINE void product(long rows, long depth, const bf16* A, long lda, const pair_t* B, Use&& use) {
    tile(rows, depth / 2, (const pair_t*)A, lda / 2, B, use);
}
INLINE void product_into(bool add, float* out, long ld, long rows, long depth, const bf16* A, long lda, const pair_t* B) {
    tile_into(add, out, ld, rows, depth / 2, (const pair_t*)A, lda / 2, B);
}
INLINE void product_into(bool add, float* out, long ld, const Columns& a, const pair_t* B) { tile_into(add, out, ld, a, B); }
