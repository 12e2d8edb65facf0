// The matrix micro-kernel in AVX512-BF16: 8 rows of 32 columns in 16 registers. See tile.h.
#pragma once
#include "gemm_pack.h"

#include "../into.h"

constexpr long L2_BYTES = 448 * 1024;  // packed panels that a task keeps in its core's second-level cache

// Nothing to prepare: these instructions need no state.
struct TileUnit {
    ~TileUnit() {}
};

// c[r] += sum over k of a(r, k) * b(k): R rows of 32 columns. a(r, k) is the pair at A[r * ra + k * ka], b(k) the 32
// pairs at B[32 k].
template <int R, class Ahead>
INLINE void accumulate(long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, __m512 (&c)[R][2], Ahead&& ahead) {
    auto step = [&] {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(B), b1 = (__m512bh)_mm512_loadu_si512(B + 16);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            const __m512bh a = (__m512bh)_mm512_set1_epi32((int)A[r * ra]);
            c[r][0] = _mm512_dpbf16_ps(c[r][0], a, b0);
            c[r][1] = _mm512_dpbf16_ps(c[r][1], a, b1);
        }
        A += ka;
        B += NR;
    };
    for (long part = 0; part < n_pairs / 16; part++) {
        ahead(part);
        for (int i = 0; i < 16; i++) step();
    }
    for (long i = 0; i < n_pairs % 16; i++) step();
}

// One tile of R rows, handed row by row to `use(row, left 16 columns, right 16 columns)`.
template <int R, class Use, class Ahead>
INLINE void tile_of(long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, Use&& use, Ahead&& ahead) {
    __m512 c[R][2];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r][0] = c[r][1] = _mm512_setzero_ps();
    accumulate<R>(n_pairs, A, ra, ka, B, c, ahead);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) use(r, c[r][0], c[r][1]);
}

// A tile of 1 to 8 rows.
template <class Use, class Ahead>
INLINE void tile_strided(long rows, long n_pairs, const pair_t* A, long ra, long ka, const pair_t* B, Use&& use, Ahead&& ahead) {
    if (rows >= MR) return tile_of<MR>(n_pairs, A, ra, ka, B, use, ahead);
    long done = 0;
    for (; rows - done >= 4; done += 4)
        tile_of<4>(n_pairs, A + done * ra, ra, ka, B, [&](int r, __m512 x, __m512 y) { use((int)(r + done), x, y); }, Nothing{});
    for (; done < rows; done++)
        tile_of<1>(n_pairs, A + done * ra, ra, ka, B, [&](int r, __m512 x, __m512 y) { use((int)(r + done), x, y); }, Nothing{});
}

template <class Use, class Ahead = Nothing>
INLINE void tile(long rows, long n_pairs, const pair_t* A, long lda, const pair_t* B, Use&& use, Ahead&& ahead = {}) {
    tile_strided(rows, n_pairs, A, lda, 1, B, use, ahead);
}

INLINE void tile_into(bool add, float* out, long ld, long rows, long n_pairs, const pair_t* A, long lda, const pair_t* B) {
    tile(rows, n_pairs, A, lda, B, Into{add, out, ld});
}

// Pairs of a product whose reduced dimension has `count` values.
INLINE constexpr long pairs_of(long count) { return ceil_div(count, 2); }

// A block of rows of 32 (or 16) columns as strips of 8 pairs along the rows, at `pair` of the n_pairs of
// out [columns / 8][n_pairs][8].
INLINE void pack_left(const bf16* from, long ld, long rows, long columns, pair_t* out, long pair, long n_pairs) {
    const long strip = n_pairs * MR;
    for (long i = 0; i < rows; i += 2) {
        const bf16 *even = from + i * ld, *odd = i + 1 < rows ? even + ld : nullptr;
        for (long c = 0; c < columns; c += 16) {
            const __m512i both = pairs16(even + c, odd ? odd + c : nullptr);
            pair_t* o = out + c / MR * strip + (pair + i / 2) * MR;
            _mm256_storeu_si256((__m256i*)o, _mm512_castsi512_si256(both));
            _mm256_storeu_si256((__m256i*)(o + strip), _mm512_extracti64x4_epi64(both, 1));
        }
    }
}

// A tile whose left operand pack_left has laid out: a whole strip.
template <class Ahead>
INLINE void tile_packed_into(bool add, float* out, long ld, long, long n_pairs, const pair_t* A, const pair_t* B,
                             Ahead&& ahead) {
    tile_of<MR>(n_pairs, A, 1, MR, B, Into{add, out, ld}, ahead);
}

// Rows of a left operand that lies by columns: the pair k of row r is at A[r + k * ld].
struct Columns {
    long rows, n_pairs;
    const pair_t* A;
    long ld;

    INLINE Columns(long rows, long n_pairs, const pair_t* A, long ld) : rows(rows), n_pairs(n_pairs), A(A), ld(ld) {}
};

INLINE void tile_into(bool add, float* out, long ld, const Columns& a, const pair_t* B) {
    tile_strided(a.rows, a.n_pairs, a.A, 1, a.ld, B, Into{add, out, ld}, Nothing{});
}
