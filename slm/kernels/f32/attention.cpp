// Causal attention of the projections' raw output in f32: QK-norm, rotary positions, softmax and both products, and their
// gradients.
//
// qkv is [B T, (H + 2 K) E]: queries of all heads, keys, values. A task is one head (and some queries); it lays out what
// it needs as packed panels in memory of its own. Scores of MR queries against all keys they may see fit the caches, so
// the softmax needs no rescaling. The backward pass computes the probabilities again from the saved log-sum-exp (Dao et
// al. 2022, FlashAttention).
#include "../arena.h"
#include "gemm.h"

namespace {

constexpr long KEY_BLOCK = 96;  // keys whose score gradients are kept for dQ: a multiple of MR and NR
constexpr float MINUS_INF = -std::numeric_limits<float>::infinity();
static_assert(KEY_BLOCK % MR == 0 && KEY_BLOCK % NR == 0, "blocks of keys are whole tiles");

struct Shape {
    long B, T, H, K, E;                // sequences, positions, query heads, key heads, values per head
    const float *cos, *sin;            // [T, E]; both halves of a row are equal
    const float *q_norm, *k_norm;      // [E] or null
    float eps;
    const int32_t* starts;             // [B, T]: the first position each one sees, or null

    long width() const { return (H + 2 * K) * E; }
    long padded() const { return padded_length(T); }
    // Values from one row of scores to the next: rows 2^n bytes apart would share one set of the first cache.
    long stride() const { return padded() + LINE; }
    float scale() const { return 1.0f / std::sqrt((float)E); }
};

thread_local Arena arena;

// One head's vector at one position: normalized where `norm` is given, then rotated. Returns 1 / rms (1 without norm).
INLINE float norm_and_rope(const float* x, long E, const float* norm, float eps, const float* cos, const float* sin, float* out) {
    float scale = 1.0f;
    if (norm) {
        vec sum = {};
        for (long e = 0; e < E; e += W) sum += load(x + e) * load(x + e);
        scale = 1.0f / std::sqrt(sum_of(sum) / E + eps);
    }
    const long half = E / 2;
    for (long e = 0; e < half; e += W) {
        vec a = load(x + e), b = load(x + half + e);
        if (norm) {
            a = a * scale * load(norm + e);
            b = b * scale * load(norm + half + e);
        }
        const vec c = load(cos + e), d = load(sin + e);
        store(out + e, a * c - b * d);
        store(out + half + e, b * c + a * d);
    }
    return scale;
}

// All positions of one head as rows [T, E]; `scales` [T] gets 1 / rms where given.
void rotated_rows(const Shape& s, const float* x, const float* norm, float* out, float* scales) {
    for (long t = 0; t < s.T; t++) {
        const float scale = norm_and_rope(x + t * s.width(), s.E, norm, s.eps, s.cos + t * s.E, s.sin + t * s.E, out + t * s.E);
        if (scales) scales[t] = scale;
    }
}

// The gradient of norm_and_rope: from d_out (of the rotated vector) to d_x, adding the norm's gradient to d_norm.
void norm_and_rope_backward(const float* x, long E, const float* norm, float scale, const float* cos, const float* sin,
                              const float* d_out, float* d_x, float* d_norm) {
    float d[MAX_HEAD_DIM];
    const long half = E / 2;
    for (long e = 0; e < half; e += W) {
        const vec a = load(d_out + e), b = load(d_out + half + e), c = load(cos + e), n = load(sin + e);
        store(d + e, a * c + b * n);
        store(d + half + e, b * c - a * n);
    }
    if (!norm) {
        memcpy(d_x, d, E * sizeof(float));
        return;
    }
    // y = w x r, r = 1 / rms: dx = r w d - x r^3 / E sum(w d x), dw = d x r.
    vec dot = {};
    for (long e = 0; e < E; e += W) {
        const vec xs = load(x + e), g = load(d + e);
        dot += g * load(norm + e) * xs;
        store(d_norm + e, g * scale * xs + load(d_norm + e));
    }
    const float k = sum_of(dot) * scale * scale * scale / E;
    for (long e = 0; e < E; e += W) store(d_x + e, load(d + e) * load(norm + e) * scale - load(x + e) * k);
}

// Positions as columns: [position panel][E][NR], for products that reduce over E.
void pack_positions(const float* rows, long ld, const Shape& s, float* out) {
    for (long t = 0; t < s.padded(); t += NR)
        pack_columns(rows + t * ld, ld, min_of(NR, max_of(0, s.T - t)), NR, s.E, out + t * s.E, NR);
}

// Keys or queries as columns, for scores, which `Rows` compute.
void pack_for_scores(const float* rows, const Shape& s, float* out) {
    pack_positions(rows, s.E, s, out);
    for (long t = 0; t < s.padded(); t += NR) finish_panel(out + t * s.E, s.E);
}

// Values as columns: [E panel][padded][NR], for products that reduce over positions.
void pack_values(const float* rows, long ld, const Shape& s, float* out) {
    const long Tp = s.padded();
    for (long p = 0; p < s.E / NR; p++) {
        float* panel = out + p * Tp * NR;
        pack_rows(rows + p * NR, ld, s.T, panel);
        memset(panel + s.T * NR, 0, (Tp - s.T) * NR * sizeof(float));
    }
}

// One row of scores, columns [from, to) at x[0..]: causal and document mask, then exp(score * scale - maximum) in place.
// Returns the sum of the exponentials; `high` gets the maximum.
INLINE float softmax_row(float* x, long from, long to, long query, long first, float scale, float& high) {
    for (long j = query + 1; j < to; j++) x[j - from] = MINUS_INF;
    for (long j = from; j < first; j++) x[j - from] = MINUS_INF;
    const long span = to - from;
    vec top = load(x), top2 = load(x + W);
    for (long j = NR; j < span; j += NR) {
        top = max_of(top, load(x + j));
        top2 = max_of(top2, load(x + j + W));
    }
    high = max_lane(max_of(top, top2)) * scale;
    const float scale2 = scale * LOG2_E, shift = high * LOG2_E;
    vec sum = {}, sum2 = {};
    for (long j = 0; j < span; j += NR) {
        const vec p = exp2_of(load(x + j) * scale2 - shift), p2 = exp2_of(load(x + j + W) * scale2 - shift);
        sum += p;
        sum2 += p2;
        store(x + j, p);
        store(x + j + W, p2);
    }
    return sum_of(sum + sum2);
}

// Queries [q, q + n) of one head against its packed keys and values.
void attend(const Shape& s, const float* q_raw, const int32_t* starts, const float* keys, const float* values, long q, long n,
            float* scores, float* q_rows, float* out, float* lse) {
    const long E = s.E, Tp = s.padded(), ld = s.stride();
    for (long r = 0; r < n; r++)
        norm_and_rope(q_raw + (q + r) * s.width(), E, s.q_norm, s.eps, s.cos + (q + r) * E, s.sin + (q + r) * E, q_rows + r * E);
    const long from = starts ? starts[q] / NR * NR : 0;  // starts never fall along a sequence
    const long to = round_up(q + n, NR), span = to - from;
    Rows<MR> queries;
    queries.take(q_rows, E, n, E);
    for (long p = from / NR; p < to / NR; p++)
        queries.product(0, n, E, keys + p * E * NR, [&](int r, vec x, vec y) ALWAYS {
            store(scores + r * ld + p * NR - from, x);
            store(scores + r * ld + p * NR - from + W, y);
        }, Nothing{});
    float inverse[MR];
    for (long r = 0; r < n; r++) {
        float high;
        const float total = softmax_row(scores + r * ld, from, to, q + r, starts ? starts[q + r] : 0, s.scale(), high);
        inverse[r] = 1.0f / total;
        lse[q + r] = high + std::log(total);
    }
    for (long p = 0; p < E / NR; p++)
        tile(n, span, scores, ld, 1, values + (p * Tp + from) * NR, [&](int r, vec x, vec y) ALWAYS {
            float* o = out + (q + r) * s.H * E + p * NR;
            store(o, x * inverse[r]);
            store(o + W, y * inverse[r]);
        });
}

// What the backward pass of one query head works with, laid out in the thread's arena.
struct Head {
    float *q_positions, *q_values, *do_positions, *do_values, *k_rows, *k_values, *dq;
    float *log_sums, *delta, *scales;  // [padded]
    int32_t* first;                    // [padded]: the first position each query sees, or null
    float *probabilities, *dp, *ds;    // [MR, stride], [MR, stride], [KEY_BLOCK, stride]

    static long bytes(const Shape& s) {
        const long size = s.padded() * s.E;
        return (7 * size + 4 * s.padded() + (2 * MR + KEY_BLOCK) * s.stride()) * (long)sizeof(float) + 16 * 64;
    }

    Head(const Shape& s) {
        const long size = s.padded() * s.E, ld = s.stride();
        q_positions = arena.take<float>(size);
        q_values = arena.take<float>(size);
        do_positions = arena.take<float>(size);
        do_values = arena.take<float>(size);
        k_rows = arena.take<float>(size);
        k_values = arena.take<float>(size);
        dq = arena.take<float>(size);
        log_sums = arena.take<float>(s.padded());
        delta = arena.take<float>(s.padded());
        scales = arena.take<float>(s.padded());
        first = arena.take<int32_t>(s.padded());
        probabilities = arena.take<float>(MR * ld);
        dp = arena.take<float>(MR * ld);
        ds = arena.take<float>(KEY_BLOCK * ld);
    }

    void fill(const Shape& s, const float* q_raw, const float* k_raw, const float* do_raw, const float* o_raw, const float* lse,
              const int32_t* starts) {
        const long E = s.E, Tp = s.padded(), HE = s.H * E;
        rotated_rows(s, q_raw, s.q_norm, k_rows, scales);  // the queries, for a moment
        pack_for_scores(k_rows, s, q_positions);
        pack_values(k_rows, E, s, q_values);
        pack_positions(do_raw, HE, s, do_positions);
        pack_values(do_raw, HE, s, do_values);
        for (long t = 0; t < Tp; t++) {
            // A query past the end has probability e^-inf = 0 of everything.
            log_sums[t] = t < s.T ? lse[t] * LOG2_E : -MINUS_INF;
            first[t] = starts && t < s.T ? starts[t] : 0;
            vec sum = {};
            for (long e = 0; e < E && t < s.T; e += W) sum += load(do_raw + t * HE + e) * load(o_raw + t * HE + e);
            delta[t] = sum_of(sum);
        }
        rotated_rows(s, k_raw, s.k_norm, k_rows, nullptr);
        pack_values(k_rows, E, s, k_values);
        memset(dq, 0, Tp * E * sizeof(float));
    }
};

// Keys [k, k + n) against all queries in [from, last): their probabilities and score gradients (ds rows `row`..). The
// gradients of the probabilities stay in f32: what is left of them beside `delta` may be little.
void score_gradients(const Shape& s, const Head& h, const float* v_raw, long k, long n, long row, long from, long last, bool documents) {
    const long E = s.E, ld = s.stride(), width = s.width(), span = last - from;
    Rows<MR> keys;
    keys.take(h.k_rows + k * E, E, n, E);
    for (long p = from / NR; p < last / NR; p++) {
        const long at = p * NR - from;
        keys.product(0, n, E, h.q_positions + p * E * NR, [&](int r, vec x, vec y) ALWAYS {
            store(h.probabilities + r * ld + at, x);
            store(h.probabilities + r * ld + at + W, y);
        }, Nothing{});
        tile(n, E, v_raw + k * width, width, 1, h.do_positions + p * E * NR, [&](int r, vec x, vec y) ALWAYS {
            store(h.dp + r * ld + at, x);
            store(h.dp + r * ld + at + W, y);
        });
    }
    ivec lanes;
    for (int i = 0; i < W; i++) lanes[i] = i;
    const float scale = s.scale(), scale2 = scale * LOG2_E;
    for (long r = 0; r < n; r++) {
        const int32_t key = (int32_t)(k + r);
        for (long j = 0; j < span; j += W) {
            ivec sees = lanes + (int32_t)(from + j) >= key;
            if (documents) sees &= load(h.first + from + j) <= key;
            float *p_at = h.probabilities + r * ld + j, *ds_at = h.ds + (row + r) * ld + from + j;
            const vec p = choose(sees, exp2_of(load(p_at) * scale2 - load(h.log_sums + from + j)), vec{});
            store(ds_at, p * scale * (load(h.dp + r * ld + j) - load(h.delta + from + j)));
            store(p_at, p);
        }
    }
}

// Queries that start after key `key` see none of it: the end of those that may, in whole panels.
long last_query(const Shape& s, const int32_t* starts, long key) {
    if (!starts) return s.padded();
    long last = key + 1;
    while (last < s.T && starts[last] <= key) last++;
    return round_up(last, NR);
}

// One query head: dq (in h), and dk and dv [padded, E] as far as they come from this head.
void head_gradients(const Shape& s, const Head& h, const float* v_raw, const int32_t* starts, float* dk, float* dv) {
    const long E = s.E, Tp = s.padded(), ld = s.stride();
    for (long k0 = 0; k0 < s.T; k0 += KEY_BLOCK) {
        const long keys = min_of(KEY_BLOCK, s.T - k0), last = last_query(s, starts, k0 + keys - 1);
        for (long k = k0; k < k0 + keys; k += MR) {
            const long n = min_of(MR, k0 + keys - k), from = k / NR * NR;  // queries before these keys see none of them
            for (long r = 0; r < n; r++) memset(h.ds + (k - k0 + r) * ld + k0, 0, (from - k0) * sizeof(float));
            score_gradients(s, h, v_raw, k, n, k - k0, from, last, starts != nullptr);
            for (long p = 0; p < E / NR; p++) {
                const long at = (p * Tp + from) * NR;
                tile(n, last - from, h.probabilities, ld, 1, h.do_values + at, [&](int r, vec x, vec y) ALWAYS {
                    store(dv + (k + r) * E + p * NR, x);
                    store(dv + (k + r) * E + p * NR + W, y);
                });
                tile(n, last - from, h.ds + (k - k0) * ld + from, ld, 1, h.q_values + at, [&](int r, vec x, vec y) ALWAYS {
                    store(dk + (k + r) * E + p * NR, x);
                    store(dk + (k + r) * E + p * NR + W, y);
                });
            }
        }
        for (long q = k0; q < last; q += MR)
            for (long p = 0; p < E / NR; p++)
                tile(min_of(MR, last - q), keys, h.ds + q, 1, ld, h.k_values + (p * Tp + k0) * NR, [&](int r, vec x, vec y) ALWAYS {
                    float* d = h.dq + (q + r) * E + p * NR;
                    store(d, load(d) + x);
                    store(d + W, load(d + W) + y);
                });
    }
}

// Gradients of one key head's keys and values: the sum over its query heads, in order. `heads` [G, 2, padded, E].
void sum_heads(const Shape& s, const float* k_raw, const float* heads, float* dk, float* dv, float* d_norm) {
    const long E = s.E, size = s.padded() * E, G = s.H / s.K;
    float sum[MAX_HEAD_DIM], rotated[MAX_HEAD_DIM];
    for (long t = 0; t < s.T; t++)
        for (int which = 0; which < 2; which++) {
            for (long e = 0; e < E; e += W) {
                vec x = {};
                for (long g = 0; g < G; g++) x += load(heads + (g * 2 + which) * size + t * E + e);
                store(sum + e, x);
            }
            if (which == 1) {
                memcpy(dv + t * s.width(), sum, E * sizeof(float));
                continue;
            }
            const float *x = k_raw + t * s.width(), *cos = s.cos + t * E, *sin = s.sin + t * E;
            const float r = s.k_norm ? norm_and_rope(x, E, s.k_norm, s.eps, cos, sin, rotated) : 1.0f;
            norm_and_rope_backward(x, E, s.k_norm, r, cos, sin, sum, dk + t * s.width(), d_norm);
        }
}

}  // namespace

extern "C" {

// out [B T, H E] and lse [B, H, T] (the log of the sum of exponentials of the scaled scores). Returns 0, or 1 where
// memory ran out.
int slm_attention_forward(const float* qkv, long B, long T, long H, long K, long E, const float* cos, const float* sin,
                          const float* q_norm, const float* k_norm, float eps, const int32_t* starts, float* out, float* lse,
                          float* scratch) {
    const Shape s{B, T, H, K, E, cos, sin, q_norm, k_norm, eps, starts};
    const long width = s.width(), G = H / K, size = s.padded() * E, block = STRIPS * MR, blocks = ceil_div(T, block);
    std::atomic<bool> failed{false};
    in_parallel([&](Share& share) {
        share.each(B * K, [&](long i) {
            const float* k_raw = qkv + i / K * T * width + (H + i % K) * E;
            if (!arena.reset(size * sizeof(float))) {
                failed = true;
                return;
            }
            float* k_rows = arena.take<float>(size);
            rotated_rows(s, k_raw, k_norm, k_rows, nullptr);
            pack_for_scores(k_rows, s, scratch + 2 * i * size);
            pack_values(k_raw + K * E, width, s, scratch + (2 * i + 1) * size);
        });
        // A head's blocks with most keys first, so that the threads end together.
        share.each(B * H * blocks, [&](long task) {
            const long q0 = (blocks - 1 - task % blocks) * block, b = task / blocks / H, h = task / blocks % H;
            const float* keys = scratch + 2 * (b * K + h / G) * size;
            if (!arena.reset((MR * s.stride() + MR * E) * sizeof(float) + 128)) {
                failed = true;
                return;
            }
            float *scores = arena.take<float>(MR * s.stride()), *q_rows = arena.take<float>(MR * E);
            for (long q = q0; q < min_of(T, q0 + block); q += MR)
                attend(s, qkv + b * T * width + h * E, starts ? starts + b * T : nullptr, keys, keys + size, q, min_of(MR, T - q),
                       scores, q_rows, out + b * T * H * E + h * E, lse + (b * H + h) * T);
        });
    });
    return failed;
}

// dqkv [B T, (H + 2 K) E] from dout [B T, H E]. d_norms [2, E] (queries', keys') is added to where norms are given.
// heads: scratch [B, H, 2, padded T, E] for keys' and values' gradients of each query head, norms: [B, H, 2, E]. Returns
// 0, or 1 where memory ran out.
int slm_attention_backward(const float* qkv, long B, long T, long H, long K, long E, const float* cos, const float* sin,
                           const float* q_norm, const float* k_norm, float eps, const int32_t* starts, const float* out,
                           const float* lse, const float* dout, float* dqkv, float* d_norms, float* heads, float* norms) {
    const Shape s{B, T, H, K, E, cos, sin, q_norm, k_norm, eps, starts};
    const long width = s.width(), G = H / K, size = s.padded() * E;
    std::atomic<bool> failed{false};
    memset(norms, 0, B * H * 2 * E * sizeof(float));
    in_parallel([&](Share& share) {
        share.each(B * H, [&](long task) {
            const long b = task / H, h = task % H, key_head = h / G;
            const float *base = qkv + b * T * width, *q_raw = base + h * E, *k_raw = base + (H + key_head) * E;
            const int32_t* first = starts ? starts + b * T : nullptr;
            if (!arena.reset(Head::bytes(s))) {
                failed = true;
                return;
            }
            Head head(s);
            head.fill(s, q_raw, k_raw, dout + b * T * H * E + h * E, out + b * T * H * E + h * E, lse + task * T, first);
            head_gradients(s, head, k_raw + K * E, first, heads + task * 2 * size, heads + (task * 2 + 1) * size);
            for (long t = 0; t < T; t++)
                norm_and_rope_backward(q_raw + t * width, E, q_norm, head.scales[t], cos + t * E, sin + t * E, head.dq + t * E,
                                         dqkv + (b * T + t) * width + h * E, norms + task * 2 * E);
        });
        share.each(B * K, [&](long i) {
            const long b = i / K, head = i % K, first = b * H + head * G, column = b * T * width + (H + head) * E;
            sum_heads(s, qkv + column, heads + first * 2 * size, dqkv + column, dqkv + column + K * E, norms + (first * 2 + 1) * E);
        });
    });
    if (q_norm)
        for (long i = 0; i < B * H; i++)
            for (long e = 0; e < 2 * E; e++) d_norms[e] += norms[i * 2 * E + e];
    return failed;
}

}  // extern "C"
