// The gradients of causal attention, back to the projections' raw output.
#include "attention.h"

namespace {

constexpr long KEY_BLOCK = 128;  // keys whose score gradients are kept for dQ

// The gradient of norm_and_rope: from d_out (of its result) to d_x, adding the norm's own gradient to d_norm.
void norm_and_rope_backward(const bf16* x, long E, const float* norm, float scale, const float* cos, const float* sin,
                   const float* d_out, bf16* d_x, float* d_norm) {
    float d[MAX_HEAD_DIM];
    const long half = E / 2;
    for (long e = 0; e < half; e += 16) {
        const __m512 a = _mm512_loadu_ps(d_out + e), b = _mm512_loadu_ps(d_out + half + e);
        const __m512 c = _mm512_loadu_ps(cos + e), n = _mm512_loadu_ps(sin + e);
        _mm512_storeu_ps(d + e, _mm512_fmadd_ps(a, c, _mm512_mul_ps(b, n)));
        _mm512_storeu_ps(d + half + e, _mm512_fmsub_ps(b, c, _mm512_mul_ps(a, n)));
    }
    if (!norm) {
        for (long e = 0; e < E; e += 16) store_bf16(d_x + e, _mm512_loadu_ps(d + e));
        return;
    }
    // y = w x r, r = 1 / rms: dx = r w d - x r^3 / E sum(w d x), dw = d x r.
    const __m512 r = _mm512_set1_ps(scale);
    __m512 dot = _mm512_setzero_ps();
    for (long e = 0; e < E; e += 16) {
        const __m512 xs = load_bf16(x + e), g = _mm512_loadu_ps(d + e);
        dot = _mm512_fmadd_ps(_mm512_mul_ps(g, _mm512_loadu_ps(norm + e)), xs, dot);
        _mm512_storeu_ps(d_norm + e, _mm512_fmadd_ps(_mm512_mul_ps(g, r), xs, _mm512_loadu_ps(d_norm + e)));
    }
    const __m512 k = _mm512_set1_ps(_mm512_reduce_add_ps(dot) * scale * scale * scale / E);
    for (long e = 0; e < E; e += 16) {
        const __m512 wd = _mm512_mul_ps(_mm512_loadu_ps(d + e), _mm512_loadu_ps(norm + e));
        store_bf16(d_x + e, _mm512_fmsub_ps(wd, r, _mm512_mul_ps(load_bf16(x + e), k)));
    }
}

// What a task of the backward pass, one query head, works on.
struct HeadMemory {
    bf16* rows;                              // [padded, E]: queries, later keys, normed and rotated
    pair_t *q_positions, *do_positions;      // packed to reduce over E
    pair_t *q_values, *do_values, *k_values; // packed to reduce over positions
    float* dq;                               // [padded, E]
    float *log_sums, *delta, *scales;        // [padded]: lse in base 2, sum of dO * O, 1 / rms of the query
    pair_t* ds_pairs;                        // [KEY_BLOCK / 2][stride]: score gradients by key pair and query
    float *s_rows, *dp_rows;                 // [MR, stride]: scores and gradients of probabilities, by key and query
    bf16 *p_rows, *ds_rows;                  // [MR, stride]: probabilities and score gradients

    bool take(const Shape& s) {
        const long size = s.padded() * s.E, ld = s.stride();
        if (!arena.reset(size * 4 * 6 + s.padded() * 12 + KEY_BLOCK * ld * 2 + MR * ld * 12 + 64 * 1024)) return false;
        rows = arena.take<bf16>(size);
        q_positions = arena.take<pair_t>(size / 2);
        q_values = arena.take<pair_t>(size / 2);
        do_positions = arena.take<pair_t>(size / 2);
        do_values = arena.take<pair_t>(size / 2);
        k_values = arena.take<pair_t>(size / 2);
        dq = arena.take<float>(size);
        log_sums = arena.take<float>(s.padded());
        delta = arena.take<float>(s.padded());
        scales = arena.take<float>(s.padded());
        ds_pairs = arena.take<pair_t>(KEY_BLOCK / 2 * ld);
        s_rows = arena.take<float>(MR * ld);
        dp_rows = arena.take<float>(MR * ld);
        p_rows = arena.take<bf16>(MR * ld);
        ds_rows = arena.take<bf16>(MR * ld);
        return true;
    }
};

// Everything that the products of one head read, packed; dq becomes zero. o and d_out: the head's output and its gradient,
// H E values from row to row.
void lay_out_head(const Shape s, const Head head, const bf16* o, const bf16* d_out, const float* lse, const HeadMemory m) {
    const long T = s.T, Tp = s.padded(), E = s.E, ld = s.H * E;
    norm_and_rope_rows(s, head.q, s.q_norm, m.rows, m.scales);
    pack_positions(m.rows, E, Tp, Tp, E, m.q_positions);
    pack_values(m.rows, E, Tp, Tp, E, m.q_values);
    pack_positions(d_out, ld, T, Tp, E, m.do_positions);
    pack_values(d_out, ld, T, Tp, E, m.do_values);
    for (long t = 0; t < Tp; t++) {
        // A query past the end has probability e^-inf = 0 of everything.
        m.log_sums[t] = t < T ? lse[(head.b * s.H + head.h) * T + t] * LOG2_E : -MINUS_INF;
        __m512 sum = _mm512_setzero_ps();
        for (long e = 0; e < E && t < T; e += 16)
            sum = _mm512_fmadd_ps(load_bf16(d_out + t * ld + e), load_bf16(o + t * ld + e), sum);
        m.delta[t] = _mm512_reduce_add_ps(sum);
    }
    norm_and_rope_rows(s, head.k, s.k_norm, m.rows, nullptr);
    pack_values(m.rows, E, Tp, Tp, E, m.k_values);
    memset(m.dq, 0, Tp * E * sizeof(float));
}

// Where the queries end, in whole panels, that see one of the keys up to `key_end`. With documents, queries that start
// after the last of these keys see none of them.
long query_end(const Shape& s, const Head& head, long key_end) {
    if (!s.starts) return s.padded();
    long last = key_end;
    while (last < s.T && s.starts[head.b * s.T + last] < key_end) last++;
    return ceil_div(last, NR) * NR;
}

// Scores of n keys from k on, and the gradients of their probabilities, for queries [from, last).
APART void key_products(const Shape s, const Head head, long k, long n, long from, long last, const HeadMemory m) {
    const long E = s.E, width = s.width(), ld = s.stride();
    for (long p = from / NR; p < last / NR; p++) {
        const long at = p * NR - from;
        tile_into(false, m.s_rows + at, ld, n, E / 2, (const pair_t*)(m.rows + k * E), E / 2,
                  m.q_positions + p * (E / 2) * NR);
        tile_into(false, m.dp_rows + at, ld, n, E / 2, (const pair_t*)(head.v + k * width), width / 2,
                  m.do_positions + p * (E / 2) * NR);
    }
}

// From them the probabilities and the gradients of the scores, by rows and by pairs of keys. ds_pairs: the first pair's.
APART void score_gradients(const Shape s, const Head head, long k, long n, long from, long span, float scale,
                            const HeadMemory m, pair_t* ds_pairs) {
    const long T = s.T, ld = s.stride();
    const __m512 scale16 = _mm512_set1_ps(scale), scale2 = _mm512_set1_ps(scale * LOG2_E);
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (long r = 0; r < n; r += 2) {
        for (long j = 0; j < span; j += 16) {
            __m512 both[2];
            const __m512i query = _mm512_add_epi32(lanes, _mm512_set1_epi32((int)(from + j)));
            for (int i = 0; i < 2; i++) {
                if (r + i >= n) {
                    both[i] = _mm512_setzero_ps();
                    continue;
                }
                const __m512i key = _mm512_set1_epi32((int)(k + r + i));
                __mmask16 sees = _mm512_cmpge_epi32_mask(query, key);
                if (s.starts) {
                    const __mmask16 real = _mm512_cmplt_epi32_mask(query, _mm512_set1_epi32((int)T));
                    const __m512i first = _mm512_maskz_loadu_epi32(real, s.starts + head.b * T + from + j);
                    sees = _mm512_mask_cmple_epi32_mask(sees, first, key);
                }
                const long at = (r + i) * ld + j;
                const __m512 x =
                    _mm512_fmsub_ps(_mm512_load_ps(m.s_rows + at), scale2, _mm512_load_ps(m.log_sums + from + j));
                const __m512 p = _mm512_maskz_mov_ps(sees, exp2_512(x));
                const __m512 ds =
                    _mm512_mul_ps(_mm512_mul_ps(p, scale16),
                                  _mm512_sub_ps(_mm512_load_ps(m.dp_rows + at), _mm512_load_ps(m.delta + from + j)));
                store_bf16(m.p_rows + at, p);
                store_bf16(m.ds_rows + at, ds);
                both[i] = ds;
            }
            _mm512_storeu_si512(ds_pairs + r / 2 * ld + from + j, interleave(both[0], both[1]));
        }
    }
}

// Gradients of the n keys from k on and of their values, from queries [from, from + span).
APART void key_gradients(const Shape s, long k, long n, long from, long span, const HeadMemory m, float* dk, float* dv) {
    const long E = s.E, Tp = s.padded(), ld = s.stride();
    for (long p = 0; p < E / NR; p++) {
        const long at = (p * (Tp / 2) + from / 2) * NR;
        tile_into(false, dv + k * E + p * NR, E, n, span / 2, (const pair_t*)m.p_rows, ld / 2, m.do_values + at);
        tile_into(false, dk + k * E + p * NR, E, n, span / 2, (const pair_t*)m.ds_rows, ld / 2, m.q_values + at);
    }
}

// Adds to the gradients of queries [first, last) what comes from the block of keys [k0, k0 + keys).
APART void query_gradients(const Shape s, long first, long last, long k0, long keys, const HeadMemory m) {
    const long E = s.E, Tp = s.padded(), ld = s.stride();
    for (long q = first; q < last; q += MR) {
        const Columns ds(min_of(MR, last - q), ceil_div(keys, 2), m.ds_pairs + q, ld);
        for (long p = 0; p < E / NR; p++)
            tile_into(true, m.dq + q * E + p * NR, E, ds, m.k_values + (p * (Tp / 2) + k0 / 2) * NR);
    }
}

// All of one query head: dq in m, its share of the key head's gradients in dk and dv [padded, E].
void head_backward(const Shape s, const Head head, float scale, const HeadMemory m, float* dk, float* dv) {
    const long ld = s.stride();
    for (long k0 = 0; k0 < s.T; k0 += KEY_BLOCK) {
        const long first = k0 / NR * NR;  // the first panel of queries that sees this block
        const long keys = min_of(KEY_BLOCK, s.T - k0), last = query_end(s, head, k0 + keys);
        for (long k = k0; k < k0 + keys; k += MR) {
            // Queries before these keys see none of them.
            const long n = min_of(MR, s.T - k), from = k / NR * NR, span = last - from;
            pair_t* ds_pairs = m.ds_pairs + (k - k0) / 2 * ld;
            for (long r = 0; r < n && from > first; r += 2)
                memset(ds_pairs + r / 2 * ld + first, 0, (from - first) * sizeof(pair_t));
            key_products(s, head, k, n, from, last, m);
            score_gradients(s, head, k, n, from, span, scale, m, ds_pairs);
            key_gradients(s, k, n, from, span, m, dk, dv);
        }
        query_gradients(s, first, last, k0, keys, m);
    }
}

// The gradients of key head `kv` of sequence `b` (its keys, its values, their norm): the sums over its query heads, in
// order. heads: [B, H, 2, padded, E], as head_backward leaves them.
void key_head_backward(const Shape s, const Head head, const float* heads, bf16* dqkv, float* d_norm) {
    const long E = s.E, T = s.T, G = s.H / s.K, size = s.padded() * E, width = s.width();
    float sum[MAX_HEAD_DIM], rotated[MAX_HEAD_DIM];
    for (long t = 0; t < T; t++) {
        bf16* d_row = dqkv + (head.b * T + t) * width + (s.H + head.kv) * E;
        for (int which = 0; which < 2; which++) {
            for (long e = 0; e < E; e += 16) {
                __m512 x = _mm512_setzero_ps();
                for (long g = 0; g < G; g++)
                    x = _mm512_add_ps(
                        x, _mm512_loadu_ps(heads + ((head.b * s.H + head.kv * G + g) * 2 + which) * size + t * E + e));
                _mm512_storeu_ps(sum + e, x);
            }
            if (which == 0) {
                const bf16* row = head.k + t * width;
                const float *cos = s.cos + t * E, *sin = s.sin + t * E;
                const float r = s.k_norm ? norm_and_rope(row, E, s.k_norm, s.eps, cos, sin, rotated) : 1.0f;
                norm_and_rope_backward(row, E, s.k_norm, r, cos, sin, sum, d_row, d_norm);
            } else {
                for (long e = 0; e < E; e += 16) store_bf16(d_row + s.K * E + e, _mm512_loadu_ps(sum + e));
            }
        }
    }
}

}  // namespace

extern "C" {

// dqkv [B T, (H + 2 K) E] from dout [B T, H E]. d_norms [2, E] (queries', keys') is added to where norms are given.
// heads: slm_attention_backward_scratch f32 values, [B, H, 2, padded T, E]: keys' and values' gradients of each query head.
// norms: [B, H, 2, E]. Returns 0, or 1 where memory ran out.
int slm_attention_backward(const bf16* qkv, long B, long T, long H, long K, long E, const float* cos, const float* sin,
                           const float* q_norm, const float* k_norm, float eps, const int32_t* starts, const bf16* out,
                           const float* lse, const bf16* dout, bf16* dqkv, float* d_norms, float* heads, float* norms) {
    const Shape s{B, T, H, K, E, cos, sin, q_norm, k_norm, eps, starts};
    const long width = s.width(), size = s.padded() * E;
    const float scale = 1.0f / std::sqrt((float)E);
    std::atomic<bool> failed{false};
    memset(norms, 0, B * H * 2 * E * sizeof(float));
    in_parallel([&](Share& share) {
        const TileUnit unit;
        share.each(B * H, [&](long task) {
            const Head head(s, qkv, task / H, task % H);
            const long first = head.b * T * H * E + head.h * E;
            HeadMemory m;
            if (!m.take(s)) {
                failed = true;
                return;
            }
            lay_out_head(s, head, out + first, dout + first, lse, m);
            head_backward(s, head, scale, m, heads + task * 2 * size, heads + (task * 2 + 1) * size);
            for (long t = 0; t < T; t++)
                norm_and_rope_backward(head.q + t * width, E, q_norm, m.scales[t], cos + t * E, sin + t * E, m.dq + t * E,
                                       dqkv + (head.b * T + t) * width + head.h * E, norms + task * 2 * E);
        });
        share.each(B * K, [&](long i) {
            const Head head(s, qkv, i / K, i % K * (H / K));
            key_head_backward(s, head, heads, dqkv, norms + ((head.b * H + head.h) * 2 + 1) * E);
        });
    });
    if (q_norm)
        for (long i = 0; i < B * H; i++)
            for (long e = 0; e < 2 * E; e++) d_norms[e] += norms[i * 2 * E + e];
    return failed;
}

}  // extern "C"
