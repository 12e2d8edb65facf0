// What the forward and the backward pass of attention share: shapes, scratch memory, QK-norm with RoPE, packing.
//
// qkv is [B T, (H + 2 K) E]: queries of all heads, keys, values. A task is one head (and some queries); it lays out what
// it needs as packed panels in memory of its own. Scores of MR queries against all keys they may see fit the caches, so
// the softmax needs no rescaling; the backward pass makes the probabilities again from the saved log-sum-exp
// (Dao et al. 2022, FlashAttention).
//
// In both passes a function with products takes copies of the structures below: a vector may be stored anywhere, so what
// stands in memory that others can reach would be read again after every store.
#pragma once
#include <atomic>
#include <limits>

#include "arena.h"
#include "family.h"

// For the parts of a pass: inlined into one function, they leave GCC too few registers for the tiles' operands.
#define APART __attribute__((noinline))

constexpr long QUERY_BLOCK = STRIPS * MR;          // queries of a task
constexpr long KEY_BLOCK = PAIR == 1 ? 96 : 128;   // keys whose score gradients are kept for dQ
static_assert(KEY_BLOCK % MR == 0 && KEY_BLOCK % NR == 0, "blocks of keys are whole tiles");

constexpr float MINUS_INF = -std::numeric_limits<float>::infinity();

struct Shape {
    long B, T, H, K, E;  // sequences, positions, query heads, key heads, values per head (a multiple of 32)
    long R;              // the first values of a head, which are rotated (a multiple of 2 LANES)
    const float *cos, *sin;            // [T, R]; both halves of a row are equal
    const float *q_norm, *k_norm;      // [E] or null
    float eps;
    float cap;                         // scores x become cap tanh(x / cap); 0: they stay
    const int32_t* starts;             // [B, T]: the first position each one sees, or null

    long width() const { return (H + 2 * K) * E; }
    long padded() const { return padded_length(T); }
    // Values from one row of scores to the next: rows 2^n bytes apart would share one set of the first cache.
    long stride() const { return padded() + SCORES_APART; }
    float scale() const { return 1.0f / std::sqrt((float)E); }
    // What the softmax multiplies scores by: capped ones are scaled already.
    float softmax_scale() const { return cap ? 1.0f : scale(); }
    // Packed items of one head's positions.
    long panels() const { return padded() * E / PAIR; }
};

inline thread_local Arena arena;  // of the forward and the backward pass

// One query head of one sequence: where its rows begin in the packed projections.
struct Head {
    long b, h, kv;  // sequence, query head, and the key head that it shares
    const value *q, *k, *v;

    Head(const Shape& s, const value* qkv, long b, long h) : b(b), h(h), kv(h / (s.H / s.K)) {
        q = qkv + b * s.T * s.width() + h * s.E;
        k = qkv + b * s.T * s.width() + (s.H + kv) * s.E;
        v = qkv + b * s.T * s.width() + (s.H + s.K + kv) * s.E;
    }
    // The first position that position t sees.
    long first(const Shape& s, long t) const { return s.starts ? s.starts[b * s.T + t] : 0; }
};

// One head's vector at one position: normed where `norm` is given, then its first R values rotated by its position
// (RoPE). Returns 1 / rms (1 without norm).
INLINE float norm_and_rope(const value* x, long E, long R, const float* norm, float eps, const float* cos, const float* sin, float* out) {
    float scale = 1.0f;
    if (norm) {
        lanes sum = {};
        for (long e = 0; e < E; e += LANES) sum += load_value(x + e) * load_value(x + e);
        scale = 1.0f / std::sqrt(sum_of(sum) / E + eps);
    }
    const long half = R / 2;
    for (long e = 0; e < half; e += LANES) {
        lanes a = load_value(x + e), b = load_value(x + half + e);
        if (norm) {
            a = a * scale * load_f32(norm + e);
            b = b * scale * load_f32(norm + half + e);
        }
        const lanes c = load_f32(cos + e), d = load_f32(sin + e);
        store_f32(out + e, a * c - b * d);
        store_f32(out + half + e, b * c + a * d);
    }
    for (long e = R; e < E; e += LANES) {
        const lanes a = load_value(x + e);
        store_f32(out + e, norm ? a * scale * load_f32(norm + e) : a);
    }
    return scale;
}

// The same as activations, of position t.
INLINE float rotated_row(const Shape& s, const value* x, long t, const float* norm, value* out) {
    float row[MAX_HEAD_DIM];
    const float scale = norm_and_rope(x, s.E, s.R, norm, s.eps, s.cos + t * s.R, s.sin + t * s.R, row);
    for (long e = 0; e < s.E; e += LANES) store_value(out + e, load_f32(row + e));
    return scale;
}

// All positions of one head: out [padded, E], zero behind the last one; `scales` [T] gets 1 / rms where given.
inline void rotated_rows(const Shape& s, const value* x, const float* norm, value* out, float* scales) {
    for (long t = 0; t < s.T; t++) {
        const float scale = rotated_row(s, x + t * s.width(), t, norm, out + t * s.E);
        if (scales) scales[t] = scale;
    }
    memset(out + s.T * s.E, 0, (s.padded() - s.T) * s.E * sizeof(value));
}

// n rows of `span` scores, scaled and capped in place (soft-capping, Gemma 2).
APART inline void cap_scores(const Shape s, float* scores, long n, long span) {
    const float into = s.scale() / s.cap;
    for (long r = 0; r < n; r++)
        for (long j = 0; j < span; j += LANES) {
            float* at = scores + r * s.stride() + j;
            store_f32(at, tanh_of(load_f32(at) * into) * s.cap);
        }
}

// Values as columns: [E panel][padded / PAIR][NR], for products that reduce over positions.
inline void pack_values(const value* rows, long ld, const Shape& s, packed* out) {
    const long whole = s.padded() / PAIR, filled = ceil_div(s.T, PAIR);
    for (long p = 0; p < s.E / NR; p++) {
        packed* panel = out + p * whole * NR;
        pack_rows(rows + p * NR, ld, s.T, panel);
        memset(panel + filled * NR, 0, (whole - filled) * NR * sizeof(packed));
    }
}

// Positions as columns: [position panel][E / PAIR][NR], for products that reduce over E.
inline void pack_sequence(const value* rows, long ld, const Shape& s, packed* out) {
    for (long t = 0; t < s.padded(); t += NR)
        pack_columns((const float*)(rows + t * ld), ld / PAIR, min_of(NR, max_of(0, s.T - t)), NR, s.E / PAIR,
                     (float*)(out + t * s.E / PAIR), NR);
}
// Keys or queries, for scores, which `ScoreRows` compute.
inline void pack_for_scores(const value* rows, const Shape& s, packed* out) {
    pack_sequence(rows, s.E, s, out);
    for (long t = 0; t < s.padded(); t += NR) finish_panel(out + t * s.E / PAIR, s.E);
}

// Rows of queries or keys, `E` values each, times panels of the other.
struct ScoreRows {
    Rows<MR> rows;
    long n, E;

    INLINE ScoreRows(const value* from, long n, long E) : n(n), E(E) { rows.take(from, E, n, E); }
    INLINE void product_into(float* out, long ld, const packed* B) const { rows.product_into(out, ld, n, E, B); }
};
