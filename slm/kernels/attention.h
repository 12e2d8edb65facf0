// What the forward and the backward pass of attention share: shapes, scratch memory, QK-norm with RoPE, packing.
//
// qkv is [B T, (H + 2 K) E]: queries of all heads, keys, values. A task is one head (and some queries); it lays out what
// it needs as packed panels in memory of its own. Scores of 8 queries against all keys they may see fit the caches, so
// the softmax needs no rescaling; the backward pass makes the probabilities again from the saved log-sum-exp
// (Dao et al. 2022, FlashAttention).
//
// In both passes a function with products takes copies of the structures below: a vector may be stored anywhere, so what
// stands in memory that others can reach would be read again after every store.
#pragma once
#include <omp.h>

#include <atomic>
#include <limits>

#include "arena.h"
#include "gemm.h"

// For the parts of a pass: inlined into one function, they leave GCC too few registers for the tiles' operands.
#define APART __attribute__((noinline))

constexpr float MINUS_INF = -std::numeric_limits<float>::infinity();

struct Shape {
    long B, T, H, K, E;  // sequences, positions, query heads, key heads, values per head (a multiple of 32)
    const float *cos, *sin;            // [T, E]; both halves of a row are equal
    const float *q_norm, *k_norm;      // [E] or null
    float eps;
    const int32_t* starts;             // [B, T]: the first position each one sees, or null

    long width() const { return (H + 2 * K) * E; }
    long padded() const { return padded_length(T); }
    // Values from one row of scores to the next: rows 2^n bytes apart would share one set of the first cache.
    long stride() const { return padded() + NR; }
};

inline thread_local Arena arena;  // of the forward and the backward pass

// One head's vector at one position: normed where `norm` is given, then rotated by its position (RoPE). Returns 1 / rms
// (1 without norm).
INLINE float norm_and_rope(const bf16* x, long E, const float* norm, float eps, const float* cos, const float* sin, float* out) {
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

// The same for all rows of one head, as bf16 [T, E]; rows up to the padded length are zero.
inline void norm_and_rope_rows(const Shape& s, const bf16* x, const float* norm, bf16* out, float* scales) {
    float row[MAX_HEAD_DIM];
    for (long t = 0; t < s.T; t++) {
        const float scale = norm_and_rope(x + t * s.width(), s.E, norm, s.eps, s.cos + t * s.E, s.sin + t * s.E, row);
        if (scales) scales[t] = scale;
        for (long e = 0; e < s.E; e += 16) store_bf16(out + t * s.E + e, _mm512_loadu_ps(row + e));
    }
    memset(out + s.T * s.E, 0, (s.padded() - s.T) * s.E * sizeof(bf16));
}

// Positions as columns: [position panel][E / 2][32], for products that reduce over E.
inline void pack_positions(const bf16* rows, long ld, long T, long padded, long E, pair_t* out) {
    for (long t = 0; t < padded; t += 16)
        pack_columns16(rows + t * ld, ld, min_of(16, max_of(0, T - t)), E, out + t / NR * (E / 2) * NR + t % NR, NR);
}

// Values as columns: [E panel][padded / 2][32], for products that reduce over positions.
inline void pack_values(const bf16* rows, long ld, long T, long padded, long E, pair_t* out) {
    for (long p = 0; p < E / NR; p++) {
        pair_t* panel = out + p * (padded / 2) * NR;
        pack_rows(rows + p * NR, ld, T, panel);
        const long pairs = ceil_div(T, 2);
        memset(panel + pairs * NR, 0, (padded / 2 - pairs) * NR * sizeof(pair_t));
    }
}

// One query head of one sequence: where its rows begin in the packed projections.
struct Head {
    long b, h, kv;  // sequence, query head, and the key head that it shares
    const bf16 *q, *k, *v;

    Head(const Shape& s, const bf16* qkv, long b, long h) : b(b), h(h), kv(h / (s.H / s.K)) {
        q = qkv + b * s.T * s.width() + h * s.E;
        k = qkv + b * s.T * s.width() + (s.H + kv) * s.E;
        v = qkv + b * s.T * s.width() + (s.H + s.K + kv) * s.E;
    }
};
