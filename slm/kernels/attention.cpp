// Causal attention of the projections' raw output: QK-norm, rotary positions, softmax and both products.
#include "attention.h"

namespace {

constexpr long QUERY_BLOCK = 96;  // queries of a task

long keys_pairs(const Shape& s) { return s.padded() * s.E / 2; }

// What a task of the forward pass works on: up to MR queries against the keys that they see.
struct QueryRows {
    float* scores;  // [MR, stride]
    bf16* p_rows;   // [MR, stride]: exp(score - highest score)
    bf16* q_rows;   // [MR, E]

    bool take(const Shape& s) {
        const long ld = s.stride();
        if (!arena.reset(MR * ld * 6 + MR * s.E * 2 + 1024)) return false;
        scores = arena.take<float>(MR * ld);
        p_rows = arena.take<bf16>(MR * ld);
        q_rows = arena.take<bf16>(MR * s.E);
        return true;
    }
};

// Exponentials of n rows of scores against keys [from, to), and 1 / their sums: row r is the query q + r.
APART void softmax_rows(const Shape s, const Head head, long q, long n, long from, long to, float scale, const QueryRows m,
                        float* inverse, float* lse) {
    const long ld = s.stride(), span = to - from;
    const __m512 scale16 = _mm512_set1_ps(scale * LOG2_E);
    for (long r = 0; r < n; r++) {
        float* x = m.scores + r * ld;
        for (long j = q + r + 1; j < to; j++) x[j - from] = MINUS_INF;
        if (s.starts)
            for (long j = from; j < s.starts[head.b * s.T + q + r]; j++) x[j - from] = MINUS_INF;
        __m512 top = _mm512_load_ps(x), top2 = _mm512_load_ps(x + 16);
        for (long j = NR; j < span; j += NR) {
            top = _mm512_max_ps(top, _mm512_load_ps(x + j));
            top2 = _mm512_max_ps(top2, _mm512_load_ps(x + j + 16));
        }
        const float high = _mm512_reduce_max_ps(_mm512_max_ps(top, top2)) * scale;
        const __m512 shift = _mm512_set1_ps(high * LOG2_E);
        __m512 sum = _mm512_setzero_ps(), sum2 = _mm512_setzero_ps();
        for (long j = 0; j < span; j += NR) {
            const __m512 p = exp2_512(_mm512_fmsub_ps(_mm512_load_ps(x + j), scale16, shift));
            const __m512 p2 = exp2_512(_mm512_fmsub_ps(_mm512_load_ps(x + j + 16), scale16, shift));
            sum = _mm512_add_ps(sum, p);
            sum2 = _mm512_add_ps(sum2, p2);
            store_bf16(m.p_rows + r * ld + j, p, p2);
        }
        const float total = _mm512_reduce_add_ps(_mm512_add_ps(sum, sum2));
        inverse[r] = 1.0f / total;
        lse[(head.b * s.H + head.h) * s.T + q + r] = high + std::log(total);
    }
}

// Scores of n queries, which lie in m.q_rows, against the keys [from, to).
APART void score_rows(const Shape s, long n, long from, long to, const pair_t* keys, const QueryRows m) {
    const long E = s.E, ld = s.stride();
    for (long p = from / NR; p < to / NR; p++)
        tile_into(false, m.scores + p * NR - from, ld, n, E / 2, (const pair_t*)m.q_rows, E / 2, keys + p * (E / 2) * NR);
}

// The output of n queries from q on: their exponentials times the values [from, to), by the inverse of their sums.
APART void output_rows(const Shape s, const Head head, long q, long n, long from, long to, const pair_t* values,
                       const QueryRows m, const float* inverse, bf16* out) {
    const long E = s.E, Tp = s.padded(), ld = s.stride();
    for (long p = 0; p < E / NR; p++)
        tile(n, (to - from) / 2, (const pair_t*)m.p_rows, ld / 2, values + (p * (Tp / 2) + from / 2) * NR,
             [&](int r, __m512 x, __m512 y) {
                 const __m512 f = _mm512_set1_ps(inverse[r]);
                 bf16* o = out + (head.b * s.T + q + r) * s.H * E + head.h * E + p * NR;
                 store_bf16(o, _mm512_mul_ps(x, f), _mm512_mul_ps(y, f));
             });
}

// Queries [q, q + n) of one head against all keys that they see.
void attend(const Shape s, const Head head, long q, long n, float scale, const pair_t* keys, const pair_t* values,
            const QueryRows m, bf16* out, float* lse) {
    const long E = s.E;
    float row[MAX_HEAD_DIM], inverse[MR];
    for (long r = 0; r < n; r++) {
        norm_and_rope(head.q + (q + r) * s.width(), E, s.q_norm, s.eps, s.cos + (q + r) * E, s.sin + (q + r) * E, row);
        for (long e = 0; e < E; e += 16) store_bf16(m.q_rows + r * E + e, _mm512_loadu_ps(row + e));
    }
    const long from = s.starts ? s.starts[head.b * s.T + q] / NR * NR : 0;  // starts never fall along a sequence
    const long to = ceil_div(q + n, NR) * NR;
    score_rows(s, n, from, to, keys, m);
    softmax_rows(s, head, q, n, from, to, scale, m, inverse, lse);
    output_rows(s, head, q, n, from, to, values, m, inverse, out);
}

}  // namespace

extern "C" {

// out [B T, H E] and lse [B, H, T] (f32; the log of the sum of exponentials of the scaled scores). scratch:
// slm_attention_scratch pairs. Returns 0, or 1 where memory ran out.
int slm_attention_forward(const bf16* qkv, long B, long T, long H, long K, long E, const float* cos, const float* sin,
                          const float* q_norm, const float* k_norm, float eps, const int32_t* starts, bf16* out,
                          float* lse, pair_t* scratch) {
    const Shape s{B, T, H, K, E, cos, sin, q_norm, k_norm, eps, starts};
    const long Tp = s.padded(), size = keys_pairs(s), blocks = ceil_div(T, QUERY_BLOCK);
    const float scale = 1.0f / std::sqrt((float)E);
    std::atomic<bool> failed{false};
    in_parallel([&](Share& share) {
        const TileUnit unit;
        share.each(B * K, [&](long i) {
            const Head head(s, qkv, i / K, i % K * (H / K));
            if (!arena.reset(Tp * E * sizeof(bf16))) {
                failed = true;
                return;
            }
            bf16* k_rows = arena.take<bf16>(Tp * E);
            norm_and_rope_rows(s, head.k, k_norm, k_rows, nullptr);
            pack_positions(k_rows, E, Tp, Tp, E, scratch + 2 * i * size);
            pack_values(head.v, s.width(), T, Tp, E, scratch + (2 * i + 1) * size);
        });
        // A head's blocks with most keys first, so that the threads end together.
        share.each(B * H * blocks, [&](long task) {
            const long q0 = (blocks - 1 - task % blocks) * QUERY_BLOCK;
            const Head head(s, qkv, task / blocks / H, task / blocks % H);
            const pair_t* keys = scratch + 2 * (head.b * K + head.kv) * size;
            QueryRows m;
            if (!m.take(s)) {
                failed = true;
                return;
            }
            for (long q = q0; q < min_of(T, q0 + QUERY_BLOCK); q += MR)
                attend(s, head, q, min_of(MR, T - q), scale, keys, keys + size, m, out, lse);
        });
    });
    return failed;
}

}  // extern "C"
