// Matrix products over packed operands. Work is cut into tasks that any thread may take: each result is computed by one
// task in one order, so it depends neither on the number of threads nor on which thread takes which task.
#pragma once

#include "sizes.h"

constexpr long L2_BYTES = 160 * 1024;  // packed panels that a task keeps in its core's second-level cache
constexpr long DEPTH = 512;            // values of the reduced dimension that a task takes at once
constexpr long STRIPS = 12;            // strips of MR rows in a task
constexpr long LINE = 16;              // floats of a cache line

struct Nothing {
    INLINE void operator()(long) const {}
};

// One tile of R rows and NR columns: sums over k of A[r * ra + k * ka] * B[k * NR + column], handed row by row to
// `use(row, left W columns, right W columns)`. Row-major rows of A are (ra = row length, ka = 1), strips (ra = 1, ka =
// rows of a strip). ahead(part) is called after every 16 values of k, to ask memory for what comes next.
template <int R, class Use, class Ahead = Nothing>
INLINE void tile_of(long depth, const float* A, long ra, long ka, const float* B, Use&& use, Ahead&& ahead = {}) {
    vec c[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r][0] = c[r][1] = vec{};
    auto step = [&]() ALWAYS {
        const vec b0 = load(B), b1 = load(B + W);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const float a = A[r * ra];
            c[r][0] = multiply_add(c[r][0], b0, a);
            c[r][1] = multiply_add(c[r][1], b1, a);
        }
        A += ka;
        B += NR;
    };
    for (long part = 0; part < depth / LINE; part++) {
        ahead(part);
#pragma GCC unroll 4
        for (int i = 0; i < LINE; i++) step();
    }
    for (long i = 0; i < depth % LINE; i++) step();
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) use(r, c[r][0], c[r][1]);
}

// A tile of 1 to MR rows.
template <class Use, class Ahead = Nothing>
INLINE void tile(long rows, long depth, const float* A, long ra, long ka, const float* B, Use&& use, Ahead&& ahead = {}) {
    if (rows >= MR) return tile_of<MR>(depth, A, ra, ka, B, use, ahead);
    long done = 0;
    for (; rows - done >= 4; done += 4)
        tile_of<4>(depth, A + done * ra, ra, ka, B, [&](int r, vec x, vec y) ALWAYS { use((int)(r + done), x, y); });
    for (; done < rows; done++)
        tile_of<1>(depth, A + done * ra, ra, ka, B, [&](int r, vec x, vec y) ALWAYS { use((int)(r + done), x, y); });
}

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
INLINE void gemm_loop(const float* A, long lda, long rows, const float* B, long depth, long panels, Use&& use, Touch&& touch) {
    const long strips = ceil_div(rows, MR), chunks = ceil_div(strips, STRIPS);
    const long blocks = ceil_div(depth, DEPTH), block = round_up(ceil_div(depth, blocks), LINE);
    const long fitting = L2_BYTES / (block * NR * (long)sizeof(float));
    const long group = max_of(1, min_of(min_of(panels, fitting), blocks > 1 ? MOST_GROUP : fitting));
    const long groups = ceil_div(panels, group);
    Partial partial;
#pragma omp for schedule(dynamic)
    for (long task = 0; task < groups * chunks; task++) {
        const long first = task / chunks * group, last = min_of(panels, first + group), strip = task % chunks * STRIPS;
        for (long k0 = 0; k0 < depth; k0 += block) {
            const bool ends = k0 + block >= depth;
            for (long s = strip; s < min_of(strips, strip + STRIPS); s++) {
                const long row = s * MR, n = min_of(MR, rows - row), own = (s - strip) * MR;
                const float* a = A + row * lda + k0;
                for (long p = first; p < last; p++) {
                    // The next strip's rows come in evenly while this strip meets its panels.
                    const long from = (p - first) * MR / (last - first), to = (p + 1 - first) * MR / (last - first);
                    tile(n, min_of(block, depth - k0), a, lda, 1, B + (p * depth + k0) * NR,
                         [&](int r, vec x, vec y) ALWAYS {
                             float* sum = partial.sums[own + r] + (p - first) * NR;
                             if (k0) {
                                 x += load(sum);
                                 y += load(sum + W);
                             }
                             if (ends) return use(row + r, p, x, y);
                             store(sum, x);
                             store(sum + W, y);
                         },
                         [&](long part) ALWAYS {
                             for (long r = from; r < to; r++) prefetch_far(a + (MR + r) * lda + part * LINE);
                             if (ends && part < MR) touch(row + part, p);
                         });
                }
            }
        }
    }
}

// NR columns of rows [0, rows) of a matrix as one panel: out [rows][NR].
INLINE void pack_rows(const float* from, long ld, long rows, float* out) {
    for (long i = 0; i < rows; i++) {
        store(out + i * NR, load(from + i * ld));
        store(out + i * NR + W, load(from + i * ld + W));
    }
}

// Up to `lanes` rows (row i at from + i * ld, `depth` values) as columns: out[k * stride + i] = from[i][k]; missing rows
// are zero.
INLINE void pack_columns(const float* from, long ld, long rows, long lanes, long depth, float* out, long stride) {
    for (long k0 = 0; k0 < depth; k0 += LINE)
        for (long i = 0; i < lanes; i++) {
            const float* row = from + i * ld + k0;
            float* to = out + k0 * stride + i;
            for (long k = 0; k < min_of(LINE, depth - k0); k++) to[k * stride] = i < rows ? row[k] : 0.0f;
        }
}

// `count` columns of rows [0, rows) as strips of MR: out [strip][rows][MR]; the last strip may be part empty (zero).
INLINE void pack_strip(const float* from, long ld, long rows, long count, float* out) {
    for (long i = 0; i < rows; i++)
        for (long r = 0; r < MR; r++) out[i * MR + r] = r < count ? from[i * ld + r] : 0.0f;
}
