// Matrix products over packed operands. Work is cut into tasks that any thread may take: each result is computed by one
// task in one order, so it depends neither on the number of threads nor on which thread takes which task.
#pragma once

#include "../tasks.h"
#include "operands.h"

#include "../into.h"

// Sums of a task between blocks of its depth: [row of the task][panel of the group][NR].
constexpr long MOST_GROUP = 12;
struct Partial {
    alignas(64) float sums[STRIPS * MR][MOST_GROUP * NR];
};

// A [rows, depth], `lda` values per row; B packed [panels][depth][NR]. Calls use(row, panel, left W, right W) once for
// each row and panel of A B, and touch(row, panel) some time before, to ask memory for what `use` will need. A depth of
// more than DEPTH is taken in blocks, so that a task's part of A and B stays in the core's second cache. Inside a parallel
// region: a worksharing loop.
template <class Use, class Touch>
INLINE void gemm_loop(Share& share, const float* A, long lda, long rows, const float* B, long depth, long panels, Use&& use, Touch&& touch) {
    const long block = block_of(depth), fitting = L2_BYTES / (block * NR * VALUE_BYTES);
    const long group = max_of(1, min_of(min_of(panels, fitting), block < depth ? MOST_GROUP : fitting));
    Partial partial;
    Rows<> own;
    share.each(ceil_div(panels, group), ceil_div(rows, MR), STRIPS, [&](long column, long strip, long end) ALWAYS {
        const long first = column * group, last = min_of(panels, first + group);
        for (long k0 = 0; k0 < depth; k0 += block) {
            const bool ends = k0 + block >= depth;
            const long count = min_of(block, depth - k0), top = strip * MR;
            own.take(A + top * lda + k0, lda, min_of((end - strip) * MR, rows - top), count);
            for (long s = strip; s < end; s++) {
                const long row = s * MR, n = min_of(MR, rows - row);
                const float* next = A + (row + MR) * lda + k0;
                for (long p = first; p < last; p++) {
                    // The next strip's rows come in evenly while this strip meets its panels.
                    const long from = (p - first) * MR / (last - first), to = (p + 1 - first) * MR / (last - first);
                    own.product(row - top, n, count, B + (p * depth + k0) * NR,
                         [&](int r, vec x, vec y) ALWAYS {
                             float* sum = partial.sums[row - top + r] + (p - first) * NR;
                             if (k0) {
                                 x += load(sum);
                                 y += load(sum + W);
                             }
                             if (ends) return use(row + r, p, x, y);
                             store(sum, x);
                             store(sum + W, y);
                         },
                         [&](long part) ALWAYS {
                             if (!INTEGERS)
                                 for (long r = from; r < to; r++) prefetch_far(next + r * lda + part * LINE);
                             if (ends && part < MR) touch(row + part, p);
                         });
                }
            }
        }
    });
}

// The same, with a parallel region of its own.
template <class Use, class Touch>
INLINE void gemm(const float* A, long lda, long rows, const float* B, long depth, long panels, Use&& use, Touch&& touch) {
    in_parallel([&](Share& share) {
        gemm_loop(share, A, lda, rows, B, depth, panels, use, touch);
    });
}

// Nothing to prepare: these instructions need no state.
struct TileUnit {
    ~TileUnit() {}
};

// One tile of up to MR rows of `depth` values, `lda` values from row to row, times a panel.
template <class Use> INLINE void product(long rows, long depth, const float* A, long lda, const float* B, Use&& use) {
    tile(rows, depth, A, lda, 1, B, use);
}
INLINE void product_into(bool add, float* out, long ld, long rows, long depth, const float* A, long lda, const float* B) {
    tile(rows, depth, A, lda, 1, B, Into{add, out, ld});
}

// Rows of a left operand that lies by columns: the value k of row r is at A[r + k * ld].
struct Columns {
    long rows, depth;
    const float* A;
    long ld;

    INLINE Columns(long rows, long depth, const float* A, long ld) : rows(rows), depth(depth), A(A), ld(ld) {}
};
INLINE void product_into(bool add, float* out, long ld, const Columns& a, const float* B) {
    tile(a.rows, a.depth, a.A, 1, a.ld, B, Into{add, out, ld});
}
