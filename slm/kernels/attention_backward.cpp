// The gradients of causal attention, back to the projections' raw output.
#include "attention.h"

namespace {

// The gradient of norm_and_rope: from d_out (of its result) to d_x, adding the norm's own gradient to d_norm.
void norm_and_rope_backward(const value* x, long E, long R, const float* norm, float scale, const float* cos,
                            const float* sin, const float* d_out, value* d_x, float* d_norm) {
    float d[MAX_HEAD_DIM];
    const long half = R / 2;
    for (long e = 0; e < half; e += LANES) {
        const lanes a = load_f32(d_out + e), b = load_f32(d_out + half + e), c = load_f32(cos + e), n = load_f32(sin + e);
        store_f32(d + e, a * c + b * n);
        store_f32(d + half + e, b * c - a * n);
    }
    for (long e = R; e < E; e += LANES) store_f32(d + e, load_f32(d_out + e));
    if (!norm) {
        for (long e = 0; e < E; e += LANES) store_value(d_x + e, load_f32(d + e));
        return;
    }
    // y = w x r, r = 1 / rms: dx = r w d - x r^3 / E sum(w d x), dw = d x r.
    lanes dot = {};
    for (long e = 0; e < E; e += LANES) {
        const lanes xs = load_value(x + e), g = load_f32(d + e);
        dot += g * load_f32(norm + e) * xs;
        store_f32(d_norm + e, g * scale * xs + load_f32(d_norm + e));
    }
    const float k = sum_of(dot) * scale * scale * scale / E;
    for (long e = 0; e < E; e += LANES)
        store_value(d_x + e, load_f32(d + e) * load_f32(norm + e) * scale - load_value(x + e) * k);
}

// What a task of the backward pass, one query head, works on.
struct HeadMemory {
    value* rows;                             // [padded, E]: queries, later keys, normed and rotated
    packed *q_positions, *do_positions;      // packed to reduce over E
    packed *q_values, *do_values, *k_values; // packed to reduce over positions
    float* dq;                               // [padded, E]
    float *log_sums, *delta, *scales;        // [padded]: lse in base 2, sum of dO * O, 1 / rms of the query
    int32_t* first;                          // [padded]: the first position that each query sees
    packed* ds;                              // [KEY_BLOCK / PAIR][stride]: score gradients by key (or pair) and query
    float *s_rows, *dp_rows;                 // [MR, stride]: scores and gradients of probabilities, by key and query
    value *p_rows, *ds_rows;                 // [MR, stride]: probabilities and score gradients; f32 has these in s_rows and ds

    bool take(const Shape& s) {
        const long size = s.padded() * s.E, ld = s.stride();
        const long bytes = size * (sizeof(value) + sizeof(float)) + 5 * s.panels() * sizeof(packed) + s.padded() * 16 +
                           KEY_BLOCK / PAIR * ld * sizeof(packed) + MR * ld * (2 * sizeof(float) + 2 * sizeof(value));
        if (!arena.reset(bytes + 64 * 1024)) return false;
        rows = arena.take<value>(size);
        q_positions = arena.take<packed>(s.panels());
        q_values = arena.take<packed>(s.panels());
        do_positions = arena.take<packed>(s.panels());
        do_values = arena.take<packed>(s.panels());
        k_values = arena.take<packed>(s.panels());
        dq = arena.take<float>(size);
        log_sums = arena.take<float>(s.padded());
        delta = arena.take<float>(s.padded());
        scales = arena.take<float>(s.padded());
        first = arena.take<int32_t>(s.padded());
        ds = arena.take<packed>(KEY_BLOCK / PAIR * ld);
        s_rows = arena.take<float>(MR * ld);
        dp_rows = arena.take<float>(MR * ld);
        p_rows = PAIR == 1 ? (value*)s_rows : arena.take<value>(MR * ld);
        ds_rows = PAIR == 1 ? nullptr : arena.take<value>(MR * ld);
        return true;
    }
};

// Everything that the products of one head read, packed; dq becomes zero. o and d_out: the head's output and its gradient,
// H E values from row to row.
void lay_out_head(const Shape s, const Head head, const value* o, const value* d_out, const float* lse, const HeadMemory m) {
    const long T = s.T, Tp = s.padded(), E = s.E, ld = s.H * E;
    rotated_rows(s, head.q, s.q_norm, m.rows, m.scales);
    pack_for_scores(m.rows, s, m.q_positions);
    pack_values(m.rows, E, s, m.q_values);
    pack_sequence(d_out, ld, s, m.do_positions);
    pack_values(d_out, ld, s, m.do_values);
    for (long t = 0; t < Tp; t++) {
        // A query past the end has probability e^-inf = 0 of everything.
        m.log_sums[t] = t < T ? lse[(head.b * s.H + head.h) * T + t] * LOG2_E : -MINUS_INF;
        m.first[t] = t < T ? head.first(s, t) : 0;
        lanes sum = {};
        for (long e = 0; e < E && t < T; e += LANES) sum += load_value(d_out + t * ld + e) * load_value(o + t * ld + e);
        m.delta[t] = sum_of(sum);
    }
    rotated_rows(s, head.k, s.k_norm, m.rows, nullptr);
    pack_values(m.rows, E, s, m.k_values);
    memset(m.dq, 0, Tp * E * sizeof(float));
}

// Where the queries end, in whole panels, that see one of the keys up to `key_end`. With documents, queries that start
// after the last of these keys see none of them.
long query_end(const Shape& s, const Head& head, long key_end) {
    if (!s.starts) return s.padded();
    long last = key_end;
    while (last < s.T && head.first(s, last) < key_end) last++;
    return round_up(last, NR);
}

// Scores of n keys from k on, and the gradients of their probabilities, for queries [from, last).
APART void key_products(const Shape s, const Head head, long k, long n, long from, long last, const HeadMemory m) {
    const long E = s.E, width = s.width(), ld = s.stride();
    const ScoreRows keys(m.rows + k * E, n, E);
    for (long p = from / NR; p < last / NR; p++) {
        const long at = p * NR - from, panel = p * (E / PAIR) * NR;
        keys.product_into(m.s_rows + at, ld, m.q_positions + panel);
        product_into(false, m.dp_rows + at, ld, n, E, head.v + k * width, width, m.do_positions + panel);
    }
}

// x where the queries from `query` on see `key`: not before it, and not before `first`, where that is given; else zero.
INLINE lanes where_seen(lanes x, long query, long key, const int32_t* first) {
    ivec places;
    for (int i = 0; i < W; i++) places[i] = i;
    ivec sees = places + (int32_t)query >= (int32_t)key;
    if (first) sees &= load(first) <= (int32_t)key;
    return choose(sees, x, lanes{});
}

// From the scores of n keys from k on, and the gradients of their probabilities, the probabilities and the gradients of the
// scores (m.ds from `row` on, in pairs of keys where the format has pairs), for queries [from, from + span). The gradients of
// the probabilities stay in f32: what is left of them beside `delta` may be little.
APART void score_gradients(const Shape s, long k, long n, long row, long from, long span, const HeadMemory m) {
    const long ld = s.stride();
    const float scale = s.scale(), scale2 = s.softmax_scale() * LOG2_E;
    const float share = s.cap ? 1.0f / s.cap : 0.0f;
    if (s.cap) cap_scores(s, m.s_rows, n, span);
    for (long r = 0; r < n; r += PAIR)
        for (long j = 0; j < span; j += LANES) {
            const long query = from + j;
            lanes ds[PAIR] = {};
            for (long i = 0; i < PAIR && r + i < n; i++) {
                const long at = (r + i) * ld + j;
                const lanes score = load_f32(m.s_rows + at), tanh = score * share;
                const lanes power = exp2_of(score * scale2 - load_f32(m.log_sums + query));
                const lanes p = where_seen(power, query, k + r + i, s.starts ? m.first + query : nullptr);
                ds[i] = p * (scale - tanh * tanh * scale) * (load_f32(m.dp_rows + at) - load_f32(m.delta + query));
                store_value(m.p_rows + at, p);
                if (PAIR > 1) store_value(m.ds_rows + at, ds[i]);
            }
            store_packed(m.ds + (row + r) / PAIR * ld + query, ds);
        }
}

// Gradients of the n keys from k on and of their values, from queries [from, from + span).
APART void key_gradients(const Shape s, long k, long n, long row, long from, long span, const HeadMemory m, float* dk, float* dv) {
    const long E = s.E, ld = s.stride();
    const value* ds_rows = PAIR == 1 ? (const value*)m.ds + row * ld + from : m.ds_rows;
    for (long p = 0; p < E / NR; p++) {
        const long at = (p * s.padded() + from) / PAIR * NR;
        product_into(false, dv + k * E + p * NR, E, n, span, m.p_rows, ld, m.do_values + at);
        product_into(false, dk + k * E + p * NR, E, n, span, ds_rows, ld, m.q_values + at);
    }
}

// Adds to the gradients of queries [first, last) what comes from the block of keys [k0, k0 + keys).
APART void query_gradients(const Shape s, long first, long last, long k0, long keys, const HeadMemory m) {
    const long E = s.E;
    for (long q = first; q < last; q += MR) {
        const Columns ds(min_of(MR, last - q), ceil_div(keys, PAIR), m.ds + q, s.stride());
        for (long p = 0; p < E / NR; p++)
            product_into(true, m.dq + q * E + p * NR, E, ds, m.k_values + (p * s.padded() + k0) / PAIR * NR);
    }
}

// All of one query head: dq in m, its share of the key head's gradients in dk and dv [padded, E].
void head_backward(const Shape s, const Head head, const HeadMemory m, float* dk, float* dv) {
    const long ld = s.stride();
    for (long k0 = 0; k0 < s.T; k0 += KEY_BLOCK) {
        const long keys = min_of(KEY_BLOCK, s.T - k0), last = query_end(s, head, k0 + keys);
        for (long k = k0; k < k0 + keys; k += MR) {
            // Queries before these keys see none of them.
            const long n = min_of(MR, k0 + keys - k), row = k - k0, from = k / NR * NR, span = last - from;
            for (long r = 0; r < n && from > k0; r += PAIR)
                memset(m.ds + (row + r) / PAIR * ld + k0, 0, (from - k0) * sizeof(packed));
            key_products(s, head, k, n, from, last, m);
            score_gradients(s, k, n, row, from, span, m);
            key_gradients(s, k, n, row, from, span, m, dk, dv);
        }
        query_gradients(s, k0, last, k0, keys, m);
    }
}

// The gradients of key head `kv` of sequence `b` (its keys, its values, their norm): the sums over its query heads, in
// order. heads: [B, H, 2, padded, E], as head_backward leaves them.
void key_head_backward(const Shape s, const Head head, const float* heads, value* dqkv, float* d_norm) {
    const long E = s.E, T = s.T, G = s.H / s.K, size = s.padded() * E, width = s.width();
    float sum[MAX_HEAD_DIM], rotated[MAX_HEAD_DIM];
    heads += (head.b * s.H + head.kv * G) * 2 * size;
    for (long t = 0; t < T; t++) {
        value* d_row = dqkv + (head.b * T + t) * width + (s.H + head.kv) * E;
        for (int which = 0; which < 2; which++) {
            for (long e = 0; e < E; e += LANES) {
                lanes x = {};
                for (long g = 0; g < G; g++) x += load_f32(heads + (g * 2 + which) * size + t * E + e);
                store_f32(sum + e, x);
            }
            if (which == 1) {
                for (long e = 0; e < E; e += LANES) store_value(d_row + s.K * E + e, load_f32(sum + e));
                continue;
            }
            const value* row = head.k + t * width;
            const float *cos = s.cos + t * s.R, *sin = s.sin + t * s.R;
            const float r = s.k_norm ? norm_and_rope(row, E, s.R, s.k_norm, s.eps, cos, sin, rotated) : 1.0f;
            norm_and_rope_backward(row, E, s.R, s.k_norm, r, cos, sin, sum, d_row, d_norm);
        }
    }
}

}  // namespace

extern "C" {

// dqkv [B T, (H + 2 K) E] from dout [B T, H E]. d_norms [2, E] (queries', keys') is added to where norms are given.
// heads: slm_attention_backward_scratch f32 values, [B, H, 2, padded T, E]: keys' and values' gradients of each query head.
// norms: [B, H, 2, E]. Returns 0, or 1 where memory ran out.
int slm_attention_backward(const value* qkv, long B, long T, long H, long K, long E, long R, const float* cos, const float* sin,
                           const float* q_norm, const float* k_norm, float eps, float cap, const int32_t* starts,
                           const value* out, const float* lse, const value* dout, value* dqkv, float* d_norms, float* heads,
                           float* norms) {
    const Shape s{B, T, H, K, E, R, cos, sin, q_norm, k_norm, eps, cap, starts};
    const long width = s.width(), size = s.padded() * E;
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
            head_backward(s, head, m, heads + task * 2 * size, heads + (task * 2 + 1) * size);
            for (long t = 0; t < T; t++)
                norm_and_rope_backward(head.q + t * width, E, R, q_norm, m.scales[t], cos + t * R, sin + t * R, m.dq + t * E,
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
