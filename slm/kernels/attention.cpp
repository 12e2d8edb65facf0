// Causal attention of the projections' raw output: QK-norm, rotary positions, softmax and both products, and backward.
//
// qkv is [B T, (H + 2 K) E]: queries of all heads, keys, values. A task is one head (and some queries); it lays out what
// it needs as packed panels in memory of its own. Scores of 8 queries against all keys they may see fit the caches, so
// the softmax needs no rescaling; the backward pass makes the probabilities again from the saved log-sum-exp
// (Dao et al. 2022, FlashAttention).
#include <omp.h>

#include <cstdlib>
#include <limits>

#include "gemm.h"

namespace {

constexpr long KEY_BLOCK = 128;  // keys whose score gradients are kept for dQ
constexpr float MINUS_INF = -std::numeric_limits<float>::infinity();

struct Shape {
    long B, T, H, K, E;  // sequences, positions, query heads, key heads, values per head (a multiple of 32)
    const float *cos, *sin;            // [T, E]; both halves of a row are equal
    const float *q_norm, *k_norm;      // [E] or null
    float eps;
    const int32_t* starts;             // [B, T]: the first position each one sees, or null

    long width() const { return (H + 2 * K) * E; }
    long padded() const { return ceil_div(T, NR) * NR; }
    // Values from one row of scores to the next: rows 2^n bytes apart would share one set of the first cache.
    long stride() const { return padded() + NR; }
};

// A block of 64-byte aligned memory that each thread keeps for its next task.
struct Arena {
    char* base = nullptr;
    size_t size = 0, used = 0;
    ~Arena() { free(base); }
    void reset(size_t bytes) {
        if (bytes > size) {
            free(base);
            size = (bytes + 4095) / 4096 * 4096;
            base = (char*)aligned_alloc(4096, size);
        }
        used = 0;
    }
    template <class T>
    T* take(long n) {
        T* p = (T*)(base + used);
        used += ceil_div(n * (long)sizeof(T), 64) * 64;
        return p;
    }
};
thread_local Arena arena;

// One head's vector at one position: normed where `norm` is given, then turned. Returns 1 / rms (1 without norm).
INLINE float turn(const bf16* x, long E, const float* norm, float eps, const float* cos, const float* sin, float* out) {
    float scale = 1.0f;
    if (norm) {
        __m512 sum = _mm512_setzero_ps();
        for (long e = 0; e < E; e += 16) sum = _mm512_fmadd_ps(load_bf16(x + e), load_bf16(x + e), sum);
        scale = 1.0f / std::sqrt(_mm512_reduce_add_ps(sum) / E + eps);
    }
    const long half = E / 2;
    const __m512 s = _mm512_set1_ps(scale);
    for (long e = 0; e < half; e += 16) {
        __m512 a = load_bf16(x + e), b = load_bf16(x + half + e);
        if (norm) {
            a = _mm512_mul_ps(_mm512_mul_ps(a, s), _mm512_loadu_ps(norm + e));
            b = _mm512_mul_ps(_mm512_mul_ps(b, s), _mm512_loadu_ps(norm + half + e));
        }
        const __m512 c = _mm512_loadu_ps(cos + e), d = _mm512_loadu_ps(sin + e);
        _mm512_storeu_ps(out + e, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, d)));
        _mm512_storeu_ps(out + half + e, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, d)));
    }
    return scale;
}

// Rows of one head, turned, as bf16 [T, E]; rows up to the padded length are zero.
void turn_rows(const Shape& s, const bf16* x, const float* norm, bf16* out, float* scales) {
    float row[512];
    for (long t = 0; t < s.T; t++) {
        const float scale = turn(x + t * s.width(), s.E, norm, s.eps, s.cos + t * s.E, s.sin + t * s.E, row);
        if (scales) scales[t] = scale;
        for (long e = 0; e < s.E; e += 16) store_bf16(out + t * s.E + e, _mm512_loadu_ps(row + e));
    }
    memset(out + s.T * s.E, 0, (s.padded() - s.T) * s.E * sizeof(bf16));
}

// The gradient of turn: from d_out (of the turned vector) to d_x, adding norm's gradient to d_norm.
void turn_backward(const bf16* x, long E, const float* norm, float scale, const float* cos, const float* sin,
                   const float* d_out, bf16* d_x, float* d_norm) {
    float d[512];
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

// Positions as columns: [position panel][E / 2][32], for products that reduce over E.
void pack_positions(const bf16* rows, long ld, long T, long padded, long E, pair_t* out) {
    for (long t = 0; t < padded; t += 16)
        pack_columns16(rows + t * ld, ld, min_of(16, max_of(0, T - t)), E, out + t / NR * (E / 2) * NR + t % NR, NR);
}

// Values as columns: [E panel][padded / 2][32], for products that reduce over positions.
void pack_values(const bf16* rows, long ld, long T, long padded, long E, pair_t* out) {
    for (long p = 0; p < E / NR; p++) {
        pair_t* panel = out + p * (padded / 2) * NR;
        pack_rows(rows + p * NR, ld, T, panel);
        const long pairs = ceil_div(T, 2);
        memset(panel + pairs * NR, 0, (padded / 2 - pairs) * NR * sizeof(pair_t));
    }
}

long keys_pairs(const Shape& s) { return s.padded() * s.E / 2; }

}  // namespace

extern "C" {

// Pairs of scratch that slm_attention_forward needs for keys and values.
long slm_attention_scratch(long B, long T, long K, long E) { return B * K * 2 * ceil_div(T, NR) * NR * E / 2; }

// out [B T, H E] and lse [B, H, T] (f32; the log of the sum of exponentials of the scaled scores).
void slm_attention_forward(const bf16* qkv, long B, long T, long H, long K, long E, const float* cos, const float* sin,
                           const float* q_norm, const float* k_norm, float eps, const int32_t* starts, bf16* out,
                           float* lse, pair_t* scratch) {
    const Shape s{B, T, H, K, E, cos, sin, q_norm, k_norm, eps, starts};
    const long Tp = s.padded(), ld = s.stride(), width = s.width(), G = H / K, size = keys_pairs(s);
    const long block = 12 * MR, blocks = ceil_div(T, block);
    const float scale = 1.0f / std::sqrt((float)E);
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (long i = 0; i < B * K; i++) {
            const long b = i / K, head = i % K;
            arena.reset(Tp * E * sizeof(bf16));
            bf16* k_rows = arena.take<bf16>(Tp * E);
            turn_rows(s, qkv + b * T * width + (H + head) * E, k_norm, k_rows, nullptr);
            pack_positions(k_rows, E, Tp, Tp, E, scratch + 2 * i * size);
            pack_values(qkv + b * T * width + (H + K + head) * E, width, T, Tp, E, scratch + (2 * i + 1) * size);
        }
        // The blocks with most keys first, so that the threads end together.
#pragma omp for schedule(dynamic)
        for (long task = 0; task < B * H * blocks; task++) {
            const long q0 = (blocks - 1 - task / (B * H)) * block, b = task % (B * H) / H, h = task % H;
            const pair_t* keys = scratch + 2 * (b * K + h / G) * size;
            const pair_t* values = keys + size;
            arena.reset(MR * ld * 6 + MR * E * 2 + 1024);
            float* scores = arena.take<float>(MR * ld);
            bf16* p_rows = arena.take<bf16>(MR * ld);
            bf16* q_rows = arena.take<bf16>(MR * E);
            float row[512];
            for (long q = q0; q < min_of(T, q0 + block); q += MR) {
                const long n = min_of(MR, T - q);
                for (long r = 0; r < n; r++) {
                    turn(qkv + (b * T + q + r) * width + h * E, E, q_norm, eps, cos + (q + r) * E, sin + (q + r) * E, row);
                    for (long e = 0; e < E; e += 16) store_bf16(q_rows + r * E + e, _mm512_loadu_ps(row + e));
                }
                const long seen = q + n;
                const long from = starts ? starts[b * T + q] / NR * NR : 0;  // starts never fall along a sequence
                const long to = ceil_div(seen, NR) * NR, span = to - from;
                for (long p = from / NR; p < to / NR; p++)
                    tile(n, E / 2, (const pair_t*)q_rows, E / 2, 1, keys + p * (E / 2) * NR,
                         [&](int r, __m512 x, __m512 y) {
                             _mm512_store_ps(scores + r * ld + p * NR - from, x);
                             _mm512_store_ps(scores + r * ld + p * NR - from + 16, y);
                         });
                float inverse[MR];
                const __m512 scale16 = _mm512_set1_ps(scale * LOG2_E);
                for (long r = 0; r < n; r++) {
                    float* x = scores + r * ld;
                    for (long j = q + r + 1; j < to; j++) x[j - from] = MINUS_INF;
                    if (starts)
                        for (long j = from; j < starts[b * T + q + r]; j++) x[j - from] = MINUS_INF;
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
                        store_bf16(p_rows + r * ld + j, p, p2);
                    }
                    const float total = _mm512_reduce_add_ps(_mm512_add_ps(sum, sum2));
                    inverse[r] = 1.0f / total;
                    lse[(b * H + h) * T + q + r] = high + std::log(total);
                }
                for (long p = 0; p < E / NR; p++)
                    tile(n, span / 2, (const pair_t*)p_rows, ld / 2, 1, values + (p * (Tp / 2) + from / 2) * NR,
                         [&](int r, __m512 x, __m512 y) {
                             const __m512 f = _mm512_set1_ps(inverse[r]);
                             bf16* o = out + (b * T + q + r) * H * E + h * E + p * NR;
                             store_bf16(o, _mm512_mul_ps(x, f), _mm512_mul_ps(y, f));
                         });
            }
        }
    }
}

// dqkv [B T, (H + 2 K) E] from dout [B T, H E]. d_norms [2, E] (queries', keys') is added to where norms are given.
// heads: f32 scratch [B, H, 2, padded T, E] for keys' and values' gradients of each query head, norms: [B, H, 2, E].
void slm_attention_backward(const bf16* qkv, long B, long T, long H, long K, long E, const float* cos, const float* sin,
                            const float* q_norm, const float* k_norm, float eps, const int32_t* starts, const bf16* out,
                            const float* lse, const bf16* dout, bf16* dqkv, float* d_norms, float* heads, float* norms) {
    const Shape s{B, T, H, K, E, cos, sin, q_norm, k_norm, eps, starts};
    const long Tp = s.padded(), ld = s.stride(), width = s.width(), G = H / K, size = Tp * E;
    const float scale = 1.0f / std::sqrt((float)E);
    memset(norms, 0, B * H * 2 * E * sizeof(float));
#pragma omp parallel
    {
#pragma omp for schedule(dynamic)
        for (long task = 0; task < B * H; task++) {
            const long b = task / H, h = task % H, head = h / G;
            const bf16* q_raw = qkv + b * T * width + h * E;
            const bf16* v_raw = qkv + b * T * width + (H + K + head) * E;
            const bf16* do_raw = dout + b * T * H * E + h * E;
            const bf16* o_raw = out + b * T * H * E + h * E;
            arena.reset(size * 4 * 6 + Tp * 12 + KEY_BLOCK * ld * 2 + MR * ld * 12 + 64 * 1024);
            bf16* rows = arena.take<bf16>(size);  // queries, then keys
            pair_t* q_positions = arena.take<pair_t>(size / 2);
            pair_t* q_values = arena.take<pair_t>(size / 2);
            pair_t* do_positions = arena.take<pair_t>(size / 2);
            pair_t* do_values = arena.take<pair_t>(size / 2);
            pair_t* k_values = arena.take<pair_t>(size / 2);
            float* dq = arena.take<float>(size);
            float *log_sums = arena.take<float>(Tp), *delta = arena.take<float>(Tp), *scales = arena.take<float>(Tp);
            pair_t* ds_pairs = arena.take<pair_t>(KEY_BLOCK / 2 * ld);  // [key pair][query]
            float* s_rows = arena.take<float>(MR * ld);
            float* dp_rows = arena.take<float>(MR * ld);
            bf16* p_rows = arena.take<bf16>(MR * ld);
            bf16* ds_rows = arena.take<bf16>(MR * ld);
            turn_rows(s, q_raw, q_norm, rows, scales);
            pack_positions(rows, E, Tp, Tp, E, q_positions);
            pack_values(rows, E, Tp, Tp, E, q_values);
            pack_positions(do_raw, H * E, T, Tp, E, do_positions);
            pack_values(do_raw, H * E, T, Tp, E, do_values);
            for (long t = 0; t < Tp; t++) {
                // A query past the end has probability e^-inf = 0 of everything.
                log_sums[t] = t < T ? lse[(b * H + h) * T + t] * LOG2_E : -MINUS_INF;
                __m512 sum = _mm512_setzero_ps();
                for (long e = 0; e < E && t < T; e += 16)
                    sum = _mm512_fmadd_ps(load_bf16(do_raw + t * H * E + e), load_bf16(o_raw + t * H * E + e), sum);
                delta[t] = _mm512_reduce_add_ps(sum);
            }
            turn_rows(s, qkv + b * T * width + (H + head) * E, k_norm, rows, nullptr);
            pack_values(rows, E, Tp, Tp, E, k_values);
            memset(dq, 0, size * sizeof(float));
            float* dk = heads + (task * 2) * size;
            float* dv = heads + (task * 2 + 1) * size;
            const __m512 scale16 = _mm512_set1_ps(scale), scale2 = _mm512_set1_ps(scale * LOG2_E);
            const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            for (long k0 = 0; k0 < T; k0 += KEY_BLOCK) {
                const long from0 = k0 / NR * NR;  // the first panel of queries that sees this block
                const long keys = min_of(KEY_BLOCK, T - k0);
                long last = Tp;  // with documents: queries that start after this block's last key see none of it
                if (starts) {
                    last = k0 + keys;
                    while (last < T && starts[b * T + last] < k0 + keys) last++;
                    last = ceil_div(last, NR) * NR;
                }
                const long key_pairs = ceil_div(keys, 2);
                for (long k = k0; k < k0 + keys; k += MR) {
                    // Queries before these keys see none of them.
                    const long n = min_of(MR, T - k), from = k / NR * NR, span = last - from;
                    for (long r = 0; r < n && from > from0; r += 2)
                        memset(ds_pairs + (k - k0 + r) / 2 * ld + from0, 0, (from - from0) * sizeof(pair_t));
                    for (long p = from / NR; p < last / NR; p++) {
                        const long at = p * NR - from;
                        tile(n, E / 2, (const pair_t*)(rows + k * E), E / 2, 1, q_positions + p * (E / 2) * NR,
                             [&](int r, __m512 x, __m512 y) {
                                 _mm512_store_ps(s_rows + r * ld + at, x);
                                 _mm512_store_ps(s_rows + r * ld + at + 16, y);
                             });
                        tile(n, E / 2, (const pair_t*)(v_raw + k * width), width / 2, 1, do_positions + p * (E / 2) * NR,
                             [&](int r, __m512 x, __m512 y) {
                                 _mm512_store_ps(dp_rows + r * ld + at, x);
                                 _mm512_store_ps(dp_rows + r * ld + at + 16, y);
                             });
                    }
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
                                if (starts) {
                                    const __mmask16 real = _mm512_cmplt_epi32_mask(query, _mm512_set1_epi32((int)T));
                                    const __m512i first = _mm512_maskz_loadu_epi32(real, starts + b * T + from + j);
                                    sees = _mm512_mask_cmple_epi32_mask(sees, first, key);
                                }
                                const long at = (r + i) * ld + j;
                                const __m512 x = _mm512_fmsub_ps(_mm512_load_ps(s_rows + at), scale2,
                                                                 _mm512_load_ps(log_sums + from + j));
                                const __m512 p = _mm512_maskz_mov_ps(sees, exp2_512(x));
                                const __m512 ds = _mm512_mul_ps(
                                    _mm512_mul_ps(p, scale16),
                                    _mm512_sub_ps(_mm512_load_ps(dp_rows + at), _mm512_load_ps(delta + from + j)));
                                store_bf16(p_rows + at, p);
                                store_bf16(ds_rows + at, ds);
                                both[i] = ds;
                            }
                            _mm512_storeu_si512(ds_pairs + ((k - k0 + r) / 2) * ld + from + j, interleave(both[0], both[1]));
                        }
                    }
                    for (long p = 0; p < E / NR; p++) {
                        const long at = (p * (Tp / 2) + from / 2) * NR;
                        tile(n, span / 2, (const pair_t*)p_rows, ld / 2, 1, do_values + at, [&](int r, __m512 x, __m512 y) {
                            _mm512_storeu_ps(dv + (k + r) * E + p * NR, x);
                            _mm512_storeu_ps(dv + (k + r) * E + p * NR + 16, y);
                        });
                        tile(n, span / 2, (const pair_t*)ds_rows, ld / 2, 1, q_values + at, [&](int r, __m512 x, __m512 y) {
                            _mm512_storeu_ps(dk + (k + r) * E + p * NR, x);
                            _mm512_storeu_ps(dk + (k + r) * E + p * NR + 16, y);
                        });
                    }
                }
                for (long q = from0; q < last; q += MR)
                    for (long p = 0; p < E / NR; p++)
                        tile(min_of(MR, last - q), key_pairs, ds_pairs + q, 1, ld, k_values + (p * (Tp / 2) + k0 / 2) * NR,
                             [&](int r, __m512 x, __m512 y) {
                                 float* d = dq + (q + r) * E + p * NR;
                                 _mm512_storeu_ps(d, _mm512_add_ps(_mm512_loadu_ps(d), x));
                                 _mm512_storeu_ps(d + 16, _mm512_add_ps(_mm512_loadu_ps(d + 16), y));
                             });
            }
            for (long t = 0; t < T; t++)
                turn_backward(q_raw + t * width, E, q_norm, scales[t], cos + t * E, sin + t * E, dq + t * E,
                              dqkv + (b * T + t) * width + h * E, norms + task * 2 * E);
        }
        // A key head's gradient is the sum over its query heads, in order.
#pragma omp for schedule(dynamic)
        for (long i = 0; i < B * K; i++) {
            const long b = i / K, head = i % K;
            const bf16* k_raw = qkv + b * T * width + (H + head) * E;
            float sum[512], turned[512];
            for (long t = 0; t < T; t++) {
                for (int which = 0; which < 2; which++) {
                    for (long e = 0; e < E; e += 16) {
                        __m512 x = _mm512_setzero_ps();
                        for (long g = 0; g < G; g++)
                            x = _mm512_add_ps(x, _mm512_loadu_ps(heads + ((b * H + head * G + g) * 2 + which) * size + t * E + e));
                        _mm512_storeu_ps(sum + e, x);
                    }
                    if (which == 0) {
                        float r = 1.0f;
                        if (k_norm) r = turn(k_raw + t * width, E, k_norm, eps, cos + t * E, sin + t * E, turned);
                        turn_backward(k_raw + t * width, E, k_norm, r, cos + t * E, sin + t * E, sum,
                                      dqkv + (b * T + t) * width + (H + head) * E,
                                      norms + ((b * H + head * G) * 2 + 1) * E);
                    } else {
                        for (long e = 0; e < E; e += 16)
                            store_bf16(dqkv + (b * T + t) * width + (H + K + head) * E + e, _mm512_loadu_ps(sum + e));
                    }
                }
            }
        }
    }
    if (q_norm)
        for (long i = 0; i < B * H; i++)
            for (long e = 0; e < 2 * E; e++) d_norms[e] += norms[i * 2 * E + e];
}

}  // extern "C"
