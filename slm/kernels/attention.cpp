// Causal attention of the projections' raw output: QK-norm, rotary positions, softmax and both products.
#include "attention.h"

namespace {

// What a task of the forward pass works on: up to MR queries against the keys that they see.
struct QueryRows {
    float* scores;  // [MR, stride]
    value* p_rows;  // [MR, stride]: exp(score - highest score); f32 writes it over the scores
    value* q_rows;  // [MR, E]

    bool take(const Shape& s) {
        const long ld = s.stride();
        if (!arena.reset(MR * (ld * (sizeof(float) + sizeof(value)) + s.E * sizeof(value)) + 1024)) return false;
        scores = arena.take<float>(MR * ld);
        p_rows = PAIR == 1 ? (value*)scores : arena.take<value>(MR * ld);
        q_rows = arena.take<value>(MR * s.E);
        return true;
    }
};

// One row of scores against keys [from, to): causal and document mask, then p = exp(score * scale - maximum). Returns the
// sum of the exponentials; `high` gets the maximum. Capped scores have been scaled: `scale` is 1.
INLINE float softmax_row(float* x, long from, long to, long query, long first, float scale, value* p, float& high) {
    for (long j = query + 1; j < to; j++) x[j - from] = MINUS_INF;
    for (long j = from; j < first; j++) x[j - from] = MINUS_INF;
    const long span = to - from;
    lanes top = load_f32(x), top2 = load_f32(x + LANES);
    for (long j = NR; j < span; j += NR) {
        top = max_of(top, load_f32(x + j));
        top2 = max_of(top2, load_f32(x + j + LANES));
    }
    high = max_lane(max_of(top, top2)) * scale;
    const float scale2 = scale * LOG2_E, shift = high * LOG2_E;
    lanes sum = {}, sum2 = {};
    for (long j = 0; j < span; j += NR) {
        const lanes left = exp2_of(load_f32(x + j) * scale2 - shift), right = exp2_of(load_f32(x + j + LANES) * scale2 - shift);
        sum += left;
        sum2 += right;
        store_values(p + j, left, right);
    }
    return sum_of(sum + sum2);
}

// Exponentials of n rows of scores against keys [from, to), and 1 / their sums: row r is the query q + r.
APART void softmax_rows(const Shape s, const Head head, long q, long n, long from, long to, const QueryRows m, float* inverse,
                        float* lse) {
    const long ld = s.stride();
    const float scale = s.softmax_scale();
    if (s.cap) cap_scores(s, m.scores, n, to - from);
    for (long r = 0; r < n; r++) {
        float high;
        const long first = head.first(s, q + r);
        const float total = softmax_row(m.scores + r * ld, from, to, q + r, first, scale, m.p_rows + r * ld, high);
        inverse[r] = 1.0f / total;
        lse[(head.b * s.H + head.h) * s.T + q + r] = high + std::log(total);
    }
}

// Scores of n queries, which lie in m.q_rows, against the keys [from, to).
APART void score_rows(const Shape s, long n, long from, long to, const packed* keys, const QueryRows m) {
    const ScoreRows queries(m.q_rows, n, s.E);
    for (long p = from / NR; p < to / NR; p++)
        queries.product_into(m.scores + p * NR - from, s.stride(), keys + p * (s.E / PAIR) * NR);
}

// The output of n queries from q on: their exponentials times the values [from, to), by the inverse of their sums.
APART void output_rows(const Shape s, const Head head, long q, long n, long from, long to, const packed* values,
                       const QueryRows m, const float* inverse, value* out) {
    const long E = s.E;
    for (long p = 0; p < E / NR; p++)
        product(n, to - from, m.p_rows, s.stride(), values + (p * s.padded() + from) / PAIR * NR, [&](int r, lanes x, lanes y) ALWAYS {
            store_values(out + (head.b * s.T + q + r) * s.H * E + head.h * E + p * NR, x * inverse[r], y * inverse[r]);
        });
}

// Queries [q, q + n) of one head against all keys that they see.
void attend(const Shape s, const Head head, long q, long n, const packed* keys, const packed* values, const QueryRows m,
            value* out, float* lse) {
    float inverse[MR];
    for (long r = 0; r < n; r++) rotated_row(s, head.q + (q + r) * s.width(), q + r, s.q_norm, m.q_rows + r * s.E);
    const long from = head.first(s, q) / NR * NR;  // starts never fall along a sequence
    const long to = round_up(q + n, NR);
    score_rows(s, n, from, to, keys, m);
    softmax_rows(s, head, q, n, from, to, m, inverse, lse);
    output_rows(s, head, q, n, from, to, values, m, inverse, out);
}

}  // namespace

extern "C" {

// out [B T, H E] and lse [B, H, T] (f32; the log of the sum of exponentials of the scaled scores). cap: scaled scores x
// become cap tanh(x / cap); 0: they stay. scratch: slm_attention_scratch items. Returns 0, or 1 where memory ran out.
int slm_attention_forward(const value* qkv, long B, long T, long H, long K, long E, long R, const float* cos, const float* sin,
                          const float* q_norm, const float* k_norm, float eps, float cap, const int32_t* starts, value* out,
                          float* lse, packed* scratch) {
    const Shape s{B, T, H, K, E, R, cos, sin, q_norm, k_norm, eps, cap, starts};
    const long size = s.panels(), blocks = ceil_div(T, QUERY_BLOCK);
    std::atomic<bool> failed{false};
    in_parallel([&](Share& share) {
        const TileUnit unit;
        share.each(B * K, [&](long i) {
            const Head head(s, qkv, i / K, i % K * (H / K));
            if (!arena.reset(s.padded() * E * sizeof(value))) {
                failed = true;
                return;
            }
            value* k_rows = arena.take<value>(s.padded() * E);
            rotated_rows(s, head.k, k_norm, k_rows, nullptr);
            pack_for_scores(k_rows, s, scratch + 2 * i * size);
            pack_values(head.v, s.width(), s, scratch + (2 * i + 1) * size);
        });
        // A head's blocks with most keys first, so that the threads end together.
        share.each(B * H * blocks, [&](long task) {
            const long q0 = (blocks - 1 - task % blocks) * QUERY_BLOCK;
            const Head head(s, qkv, task / blocks / H, task / blocks % H);
            const packed* keys = scratch + 2 * (head.b * K + head.kv) * size;
            QueryRows m;
            if (!m.take(s)) {
                failed = true;
                return;
            }
            for (long q = q0; q < min_of(T, q0 + QUERY_BLOCK); q += MR)
                attend(s, head, q, min_of(MR, T - q), keys, keys + size, m, out, lse);
        });
    });
    return failed;
}

}  // extern "C"
