// Attention's scores in f32 (attention.h): packing of positions, and the gradients of scores.
#pragma once

constexpr long QUERY_BLOCK = STRIPS * MR;  // queries of a task
constexpr long KEY_BLOCK = 96;             // keys whose score gradients are kept for dQ
static_assert(KEY_BLOCK % MR == 0 && KEY_BLOCK % NR == 0, "blocks of keys are whole tiles");

// Positions as columns: [position panel][E][NR], for products that reduce over E.
inline void pack_sequence(const float* rows, long ld, const Shape& s, float* out) {
    for (long t = 0; t < s.padded(); t += NR)
        pack_columns(rows + t * ld, ld, min_of(NR, max_of(0, s.T - t)), NR, s.E, out + t * s.E, NR);
}
// Keys or queries, for scores, which `ScoreRows` compute.
inline void pack_for_scores(const float* rows, const Shape& s, float* out) {
    pack_sequence(rows, s.E, s, out);
    for (long t = 0; t < s.padded(); t += NR) finish_panel(out + t * s.E, s.E);
}

// Rows of queries or keys, `E` values each, times panels of the other.
struct ScoreRows {
    Rows<MR> rows;
    long n, E;

    INLINE ScoreRows(const float* from, long n, long E) : n(n), E(E) { rows.take(from, E, n, E); }
    INLINE void product_into(float* out, long ld, const float* B) const { rows.product(0, n, E, B, Into{false, out, ld}, Nothing{}); }
};

// The first of the rows of score gradients that a tile of keys has: by key and query, for queries from `from` on.
template <class Memory> INLINE const float* gradient_rows_of(const Memory& m, const Shape& s, long row, long from) {
    return m.ds + row * s.stride() + from;
}

// From the scores of n keys from k on, and the gradients of their probabilities, the probabilities and the gradients of the
// scores (m.ds from `row` on), for queries [from, from + span). The gradients of the probabilities stay in f32: what is left
// of them beside `delta` may be little.
template <class Memory>
APART void score_gradients(const Shape s, long k, long n, long row, long from, long span, const Memory m) {
    const long ld = s.stride();
    ivec places;
    for (int i = 0; i < W; i++) places[i] = i;
    const float scale = s.scale(), scale2 = scale * LOG2_E;
    for (long r = 0; r < n; r++) {
        const int32_t key = (int32_t)(k + r);
        for (long j = 0; j < span; j += W) {
            ivec sees = places + (int32_t)(from + j) >= key;
            if (s.starts) sees &= load(m.first + from + j) <= key;
            float *p_at = m.p_rows + r * ld + j, *ds_at = m.ds + (row + r) * ld + from + j;
            const vec p = choose(sees, exp2_of(load(m.s_rows + r * ld + j) * scale2 - load(m.log_sums + from + j)), vec{});
            store(ds_at, p * scale * (load(m.dp_rows + r * ld + j) - load(m.delta + from + j)));
            store(p_at, p);
        }
    }
}
