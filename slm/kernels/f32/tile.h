// The innermost product in f32, and the packing that it reads.
#pragma once

#include "sizes.h"

constexpr long LINE = 16;              // floats of a cache line

// What tiles of all number formats do: adds to c the products of R rows with NR columns over `depth` values of k, or units
// of several, A[r * ra + k * ka] * B[k * NR + column], each by multiply(left sums, right ones, a, left columns, right ones).
// ahead(part) is called before every PART of them, to ask memory for what comes next.
template <int R, long PART, class Sums, class Value, class Multiply, class Ahead>
INLINE void add_products(Sums (&c)[R][2], long depth, const Value* A, long ra, long ka, const Value* B, Multiply&& multiply,
                         Ahead&& ahead) {
    auto step = [&]() ALWAYS {
        const Sums b0 = load(B), b1 = load(B + W);
        unrolled<R>([&](auto r) ALWAYS { multiply(c[r][0], c[r][1], A[r * ra], b0, b1); });
        A += ka;
        B += NR;
    };
    for (long part = 0; part < depth / PART; part++) {
        ahead(part);
#pragma GCC unroll 4
        for (int i = 0; i < PART; i++) step();
    }
    for (long i = 0; i < depth % PART; i++) step();
}

// One tile of R rows and NR columns: sums over k of A[r * ra + k * ka] * B[k * NR + column], handed row by row to
// `use(row, left W columns, right W columns)`. Row-major rows of A are (ra = row length, ka = 1), strips (ra = 1, ka =
// rows of a strip). ahead(part) is called before every 16 values of k.
template <int R, class Use, class Ahead = Nothing>
INLINE void tile_of(long depth, const float* A, long ra, long ka, const float* B, Use&& use, Ahead&& ahead = {}) {
    vec c[R][2];
    unrolled<R>([&](auto r) ALWAYS { c[r][0] = c[r][1] = vec{}; });
    const auto multiply = [](vec& c0, vec& c1, const float& a, vec b0, vec b1) ALWAYS {
        c0 = multiply_add(c0, b0, a);
        c1 = multiply_add(c1, b1, a);
    };
    add_products<R, LINE>(c, depth, A, ra, ka, B, multiply, ahead);
    unrolled<R>([&](auto r) ALWAYS { use(r, c[r][0], c[r][1]); });
}

// The 1 to MR rows of a tile: MR at once, fewer by four and one. each(how many rows, as a constant; the first of them).
template <class Each> INLINE void by_rows(long rows, Each&& each) {
    if (rows >= MR) return each(std::integral_constant<int, (int)MR>{}, 0L);
    long done = 0;
    for (; rows - done >= 4; done += 4) each(std::integral_constant<int, 4>{}, done);
    for (; done < rows; done++) each(std::integral_constant<int, 1>{}, done);
}

// A tile of 1 to MR rows.
template <class Use, class Ahead = Nothing>
INLINE void tile(long rows, long depth, const float* A, long ra, long ka, const float* B, Use&& use, Ahead&& ahead = {}) {
    by_rows(rows, [&](auto count, long first) ALWAYS {
        tile_of<count>(depth, A + first * ra, ra, ka, B, [&](int r, vec x, vec y) ALWAYS { use((int)(r + first), x, y); }, ahead);
    });
}

// NR columns of rows [0, rows) of a matrix as one panel: out [rows][NR].
INLINE void pack_rows(const float* from, long ld, long rows, float* out) {
    for (long i = 0; i < rows; i++) {
        store(out + i * NR, load(from + i * ld));
        store(out + i * NR + W, load(from + i * ld + W));
    }
}

// Up to `lanes` rows (row i at from + i * ld, `depth` values) as columns: out[k * stride + i] = from[i][k]; missing rows
// are zero. Whole vectors of both.
INLINE void pack_columns(const float* from, long ld, long rows, long lanes, long depth, float* out, long stride) {
    for (long k = 0; k < depth; k += W)
        for (long i = 0; i < lanes; i += W) {
            vec block[W];
            unrolled<W>([&](auto r) ALWAYS { block[r] = i + r < rows ? load(from + (i + r) * ld + k) : vec{}; });
            transpose(block);
            unrolled<W>([&](auto r) ALWAYS { store(out + (k + r) * stride + i, block[r]); });
        }
}

// `count` columns of rows [0, rows) as strips of MR: out [strip][rows][MR]; the last strip may be part empty (zero).
INLINE void pack_strip(const float* from, long ld, long rows, long count, float* out) {
    for (long i = 0; i < rows; i++)
        for (long r = 0; r < MR; r++) out[i * MR + r] = r < count ? from[i * ld + r] : 0.0f;
}
