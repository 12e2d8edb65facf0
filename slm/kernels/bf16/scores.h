// Attention's scores in bf16 (attention.h): packing of positions, and the gradients of scores.
#pragma once

constexpr long QUERY_BLOCK = 96;  // queries of a task
constexpr long KEY_BLOCK = 128;   // keys whose score gradients are kept for dQ

// Positions as columns: [position panel][E / 2][32], for products that reduce over E.
inline void pack_sequence(const bf16* rows, long ld, const Shape& s, pair_t* out) {
    for (long t = 0; t < s.padded(); t += 16)
        pack_columns16(rows + t * ld, ld, min_of(16, max_of(0, s.T - t)), s.E, out + t / NR * (s.E / 2) * NR + t % NR, NR);
}
inline void pack_for_scores(const bf16* rows, const Shape& s, pair_t* out) { pack_sequence(rows, s.E, s, out); }

// Rows of queries or keys, `E` values each, times panels of the other.
struct ScoreRows {
    const bf16* rows;
    long n, E;

    INLINE ScoreRows(const bf16* rows, long n, long E) : rows(rows), n(n), E(E) {}
    INLINE void product_into(float* out, long ld, const pair_t* B) const { ::product_into(false, out, ld, n, E, rows, E, B); }
};

// The first of the rows of score gradients that a tile of keys has: by key and query.
template <class Memory> INLINE const bf16* gradient_rows_of(const Memory& m, const Shape&, long, long) { return m.ds_rows; }

// From the scores of n keys from k on, and the gradients of their probabilities, the probabilities and the gradients of the
// scores, by rows and by pairs of keys (m.ds from `row` on), for queries [from, from + span).
template <class Memory>
APART void score_gradients(const Shape s, long k, long n, long row, long from, long span, const Memory m) {
    const long ld = s.stride();
    const float scale = s.scale();
    const __m512 scale16 = _mm512_set1_ps(scale), scale2 = _mm512_set1_ps(scale * LOG2_E);
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (long r = 0; r < n; r += 2) {
        for (long j = 0; j < span; j += 16) {
            __m512 both[2];
            const __m512i query = _mm512_add_epi32(places, _mm512_set1_epi32((int)(from + j)));
            for (int i = 0; i < 2; i++) {
                if (r + i >= n) {
                    both[i] = _mm512_setzero_ps();
                    continue;
                }
                const __m512i key = _mm512_set1_epi32((int)(k + r + i));
                __mmask16 sees = _mm512_cmpge_epi32_mask(query, key);
                if (s.starts) sees = _mm512_mask_cmple_epi32_mask(sees, _mm512_loadu_si512(m.first + from + j), key);
                const long at = (r + i) * ld + j;
                const __m512 x =
                    _mm512_fmsub_ps(_mm512_load_ps(m.s_rows + at), scale2, _mm512_load_ps(m.log_sums + from + j));
                const __m512 p = _mm512_maskz_mov_ps(sees, exp2_of(x));
                const __m512 ds =
                    _mm512_mul_ps(_mm512_mul_ps(p, scale16),
                                  _mm512_sub_ps(_mm512_load_ps(m.dp_rows + at), _mm512_load_ps(m.delta + from + j)));
                store_bf16(m.p_rows + at, p);
                store_bf16(m.ds_rows + at, ds);
                both[i] = ds;
            }
            _mm512_storeu_si512(m.ds + (row + r) / 2 * ld + from + j, interleave(both[0], both[1]));
        }
    }
}
