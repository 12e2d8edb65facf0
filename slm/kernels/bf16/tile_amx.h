// The matrix micro-kernel in AMX: 32 rows of 32 columns in four tiles of 16 x 16.
//
// A panel of B is as tiles want it: 16 pairs are 16 rows of 128 bytes, the left half of which is one tile and the right
// half another. Every product reduces over whole groups of 16 pairs; operands are filled up with zeros to that.
#pragma once
#include "amx.h"

constexpr long L2_BYTES = 1024 * 1024;  // packed panels that a task keeps in its core's second-level cache (2 MiB)
constexpr long GROUP = 16;              // pairs of one step
constexpr long TILE = 16;               // rows and columns of a tile, and items of a cache line
constexpr long LINE = TILE;

INLINE constexpr long groups_of(long n_pairs) { return ceil_div(n_pairs, GROUP); }

// Pairs of a product whose reduced dimension has `count` values.
INLINE constexpr long pairs_of(long count) { return groups_of(ceil_div(count, 2)) * GROUP; }

// Hands the sums in tiles 0 to 3 on by rows.
template <class Use>
INLINE void use_sums(long rows, Use&& use) {
    alignas(64) float sums[2 * TILE][NR];
    amx::store<0>(sums, sizeof sums[0]);
    amx::store<1>(sums[0] + TILE, sizeof sums[0]);
    if (rows > TILE) {
        amx::store<2>(sums[TILE], sizeof sums[0]);
        amx::store<3>(sums[TILE] + TILE, sizeof sums[0]);
    }
    for (long r = 0; r < rows; r++) use((int)r, _mm512_load_ps(sums[r]), _mm512_load_ps(sums[r] + TILE));
}

INLINE void zero_sums() {
    amx::zero<0>();
    amx::zero<1>();
    amx::zero<2>();
    amx::zero<3>();
}

// Tiles 0 to 3 from rows of f32 that are `ld` values apart, and back: 16 rows, or 32 where more are asked for.
INLINE void load_sums(long rows, const float* from, long ld) {
    const long stride = ld * (long)sizeof(float);
    amx::load<0>(from, stride);
    amx::load<1>(from + TILE, stride);
    if (rows > TILE) {
        amx::load<2>(from + TILE * ld, stride);
        amx::load<3>(from + TILE * ld + TILE, stride);
    }
}
INLINE void store_sums(long rows, float* to, long ld) {
    const long stride = ld * (long)sizeof(float);
    amx::store<0>(to, stride);
    amx::store<1>(to + TILE, stride);
    if (rows > TILE) {
        amx::store<2>(to + TILE * ld, stride);
        amx::store<3>(to + TILE * ld + TILE, stride);
    }
}
INLINE void start_sums(bool add, long rows, const float* from, long ld) {
    amx::stores_are_done();
    if (add)
        load_sums(rows, from, ld);
    else
        zero_sums();
}

// Rows [16, 32) or [0, 16) of the left operand are in tile 4 or 5; 16 pairs of a panel go to tiles 6 and 7.
template <bool Both>
INLINE void multiply_step(const pair_t* top, const pair_t* bottom, long stride, const pair_t* B) {
    amx::load<6>(B, NR * sizeof(pair_t));
    amx::load<4>(top, stride);
    amx::multiply<0, 4, 6>();
    amx::load<7>(B + TILE, NR * sizeof(pair_t));
    amx::multiply<1, 4, 7>();
    if (Both) {
        amx::load<5>(bottom, stride);
        amx::multiply<2, 5, 6>();
        amx::multiply<3, 5, 7>();
    }
}

// Rows of A are `lda` pairs apart, groups of them `next` pairs.
template <bool Both, class Ahead>
INLINE void multiply_rows(long n_pairs, const pair_t* A, long lda, long next, const pair_t* B, Ahead&& ahead) {
    for (long g = 0; g < groups_of(n_pairs); g++) {
        ahead(g);
        const pair_t* a = A + g * next;
        multiply_step<Both>(a, a + TILE * lda, lda * (long)sizeof(pair_t), B + g * GROUP * NR);
    }
}

// The same where not all rows of a tile exist: what exists is copied next to zeros. Only the ends of matrices come here.
template <class Ahead>
inline void multiply_few_rows(long rows, long n_pairs, const pair_t* A, long lda, const pair_t* B, Ahead&& ahead) {
    alignas(64) pair_t some[2 * TILE][GROUP] = {};
    for (long g = 0; g < groups_of(n_pairs); g++) {
        ahead(g);
        for (long r = 0; r < rows; r++) memcpy(some[r], A + r * lda + g * GROUP, sizeof some[r]);
        amx::stores_are_done();
        multiply_step<true>(some[0], some[TILE], sizeof some[0], B + g * GROUP * NR);
    }
}

template <class Ahead>
INLINE void multiply(long rows, long n_pairs, const pair_t* A, long lda, const pair_t* B, Ahead&& ahead) {
    if (rows >= 2 * TILE)
        multiply_rows<true>(n_pairs, A, lda, GROUP, B, ahead);
    else if (rows == TILE)
        multiply_rows<false>(n_pairs, A, lda, GROUP, B, ahead);
    else
        multiply_few_rows(rows, n_pairs, A, lda, B, ahead);
}

// Up to MR rows of `depth` values, `lda` values from row to row, times a panel: use(row, left 16 columns, right 16 columns), or
// in rows of f32 that are `ld` values apart (whole blocks of 16 or 32, also where `rows` are fewer), added or not.
template <class Use, class Ahead = Nothing>
INLINE void product(long rows, long depth, const bf16* A, long lda, const pair_t* B, Use&& use, Ahead&& ahead = {}) {
    amx::stores_are_done();
    zero_sums();
    multiply(rows, depth / 2, (const pair_t*)A, lda / 2, B, ahead);
    use_sums(min_of(rows, MR), use);
}
INLINE void pairs_into(bool add, float* out, long ld, long rows, long n_pairs, const pair_t* A, long lda, const pair_t* B) {
    start_sums(add, rows, out, ld);
    multiply(rows, n_pairs, A, lda, B, Nothing{});
    store_sums(rows, out, ld);
}
INLINE void product_into(bool add, float* out, long ld, long rows, long depth, const bf16* A, long lda, const pair_t* B) {
    pairs_into(add, out, ld, rows, depth / 2, (const pair_t*)A, lda / 2, B);
}

// A block of rows, at most 2 GROUP, of 32 (or 16) columns. Its tiles lie one behind the other, at `pair` of the n_pairs of
// out [n_pairs / 16][columns][16]: a tile that is read in one piece comes faster. Missing rows are zero.
INLINE void pack_left(const bf16* from, long ld, long rows, long columns, pair_t* out, long pair, long) {
    out += pair * columns;
    for (long c = 0; c < columns; c += TILE) {
        vec pairs[W];
        unrolled<W>([&](auto g) ALWAYS {
            const bf16* row = from + 2 * g * ld + c;
            pairs[g] = 2 * g < rows ? (vec)pairs_of_rows(row, 2 * g + 1 < rows ? row + ld : nullptr) : vec{};
        });
        transpose(pairs);
        unrolled<W>([&](auto r) ALWAYS { _mm512_storeu_si512(out + (c + r) * GROUP, (__m512i)pairs[r]); });
    }
}

// A tile of `rows` rows (16 or 32) whose left operand pack_left has laid out, times a panel of x: sums over `count` positions.
// Tiles take what is added to, and give the sums back, without `use`.
template <class Use, class Ahead>
INLINE void gradient_tile(long rows, long count, const pair_t* dy, const pair_t* x, Use&&, Ahead&& ahead, bool add, float* out, long ld) {
    start_sums(add, rows, out, ld);
    if (rows == MR)
        multiply_rows<true>(pairs_of(count), dy, GROUP, MR * GROUP, x, ahead);
    else
        multiply_rows<false>(pairs_of(count), dy, GROUP, TILE * GROUP, x, ahead);
    store_sums(rows, out, ld);
}

// Rows of a left operand that lies by columns: the pair k of row r is at A[r + k * ld]. Copied by rows, up to MAX_PAIRS.
struct Columns {
    static constexpr long MAX_PAIRS = 64;
    alignas(64) pair_t by_rows[MR][MAX_PAIRS];
    long rows, n_pairs;

    INLINE Columns(long rows, long n_pairs, const pair_t* A, long ld) : rows(rows), n_pairs(n_pairs) {
        pack_columns((const float*)A, ld, n_pairs, round_up(n_pairs, GROUP), round_up(rows, TILE), (float*)by_rows, MAX_PAIRS);
    }
};
INLINE void product_into(bool add, float* out, long ld, const Columns& a, const pair_t* B) {
    pairs_into(add, out, ld, a.rows, a.n_pairs, a.by_rows[0], Columns::MAX_PAIRS, B);
}
