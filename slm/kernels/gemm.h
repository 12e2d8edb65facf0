// Matrix products over packed operands. Work is cut into tasks that any thread may take: each result is computed by one
// task in one order, so it depends neither on the number of threads nor on which thread takes which task.
#pragma once
#include "tasks.h"

#ifndef SLM_INTEGERS

constexpr bool INTEGERS = false;

// A task's rows of A, as they lie. Those of integers, and their panels, are packed (f32/integers.h).
template <long = 0> struct Rows {
    const value* A;
    long lda;

    void take(const value* from, long ld, long, long) { A = from, lda = ld; }
    // `rows` of them from `first` on, `depth` values each, with one panel.
    template <class Use, class Ahead>
    INLINE void product(long first, long rows, long depth, const packed* B, Use&& use, Ahead&& ahead) const {
        ::product(rows, depth, A + first * lda, lda, B, use, ahead);
    }
    INLINE void product_into(float* out, long ld, long rows, long depth, const packed* B) const {
        ::product_into(false, out, ld, rows, depth, A, lda, B);
    }
};
INLINE void finish_panel(packed*, long) {}

#endif

// Sums of a task between blocks of its depth: [row of the task][panel of the group][NR].
constexpr long MOST_GROUP = 12;
struct Partial {
    alignas(64) float sums[STRIPS * MR][MOST_GROUP * NR];
};

// A [rows, depth], `lda` values per row; B packed [panels][depth / PAIR][NR]. Calls use(row, panel, left LANES, right LANES)
// once for each row and panel of A B, and touch(row, panel) some time before, to ask memory for what `use` will need. The
// depth is taken in blocks, so that a task's part of A and B stays in the core's second cache. Inside a parallel region: a
// worksharing loop.
template <class Use, class Touch>
INLINE void gemm_loop(Share& share, const value* A, long lda, long rows, const packed* B, long depth, long block, long panels,
                      Use&& use, Touch&& touch) {
    const long fitting = L2_BYTES / (block * NR * VALUE_BYTES);
    const long group = max_of(1, min_of(min_of(panels, fitting), block < depth ? MOST_GROUP : fitting));
    // f32 rows that lie further apart evict each other: to ask for them cost the head's backward pass a sixth with AVX2.
    const bool asks_ahead = !INTEGERS && (PAIR == 2 || lda <= 4096);
    const TileUnit unit;
    Partial partial;
    Rows<> own;
    share.each(ceil_div(panels, group), ceil_div(rows, MR), STRIPS, [&](long column, long strip, long end) ALWAYS {
        const long first = column * group, last = min_of(panels, first + group);
        for (long k0 = 0; k0 < depth; k0 += block) {
            const bool ends = k0 + block >= depth;
            const long count = min_of(block, depth - k0), top = strip * MR;
            const long touched = ceil_div(MR, max_of(1, count / PAIR / LINE));  // rows in one part of a tile
            own.take(A + top * lda + k0, lda, min_of((end - strip) * MR, rows - top), count);
            for (long s = strip; s < end; s++) {
                const long row = s * MR, n = min_of(MR, rows - row);
                const value* next = A + (row + MR) * lda + k0;
                for (long p = first; p < last; p++) {
                    // The next strip's rows come in evenly while this strip meets its panels.
                    const long from = (p - first) * MR / (last - first), to = (p + 1 - first) * MR / (last - first);
                    own.product(row - top, n, count, B + (p * depth + k0) / PAIR * NR, [&](int r, lanes x, lanes y) ALWAYS {
                        float* sum = partial.sums[row - top + r] + (p - first) * NR;
                        if (k0) {
                            x += load_f32(sum);
                            y += load_f32(sum + LANES);
                        }
                        if (ends) return use(row + r, p, x, y);
                        store_f32(sum, x);
                        store_f32(sum + LANES, y);
                    }, [&](long part) ALWAYS {
                        if (asks_ahead)
                            for (long r = from; r < to; r++) prefetch_far(next + r * lda + part * LINE * PAIR);
                        for (long r = part * touched; ends && r < min_of(MR, (part + 1) * touched); r++) touch(row + r, p);
                    });
                }
            }
        }
    });
}

// The same, with a parallel region of its own.
template <class Use, class Touch>
INLINE void gemm(const value* A, long lda, long rows, const packed* B, long depth, long block, long panels, Use&& use, Touch&& touch) {
    in_parallel([&](Share& share) { gemm_loop(share, A, lda, rows, B, depth, block, panels, use, touch); });
}
